"""finish="close": a truncated text gets a short valid ending, and is never repaired otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.constraints.specs import Choices, Grammar, JsonSchema, Regex, match
from radixlang.errors import IncompleteError
from radixlang.runtime.constraints import completion
from radixlang.runtime.constraints.compiled import byte_constraint


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time for a busy machine; what bounds these searches is their number of steps."""
    monkeypatch.setattr(completion, "MAX_CLOSING_S", 30.0)


SCHEMA = JsonSchema.of(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3},
            "age": {"type": "integer", "minimum": 18},
            "kind": {"enum": ["abc", "abd"]},
            "xs": {"type": "array", "minItems": 2, "items": {"type": "number"}},
            "sub": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
            "date": {"type": "string", "format": "date"},
        },
        "required": ["name", "age", "kind", "xs", "sub", "date"],
    }
)
WHOLE = (
    '{"name": "Zoë é", "age": 77, "kind": "abd", "xs": [1, 2.5e3], "sub": null, '
    '"date": "2024-01-31", "more": {"a": [true, "x"]}}'
)


def close(spec: Any, text: str | bytes) -> str:
    return byte_constraint(spec).close(text)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(WHOLE.encode())))
def test_every_truncation_is_closed_validly(cut: int) -> None:
    data = WHOLE.encode()[:cut]
    ending = close(SCHEMA, data)
    text = data.decode("utf-8", "ignore") + ending
    assert text.startswith(WHOLE[: len(data.decode("utf-8", "ignore"))])
    assert match(SCHEMA, text)
    assert len(ending) < 250
    json.loads(text)


@pytest.mark.parametrize(
    ("spec", "text", "ending"),
    [
        (Regex("[a-z]{3}!"), "a", "aa!"),
        (Regex("[0-9]+"), "12", ""),
        (Choices(("yes", "no")), "y", "es"),
        (Grammar('start: "(" start ")" | "x"'), "((", "x))"),
        (JsonSchema.of({"type": "string"}), '"a\\', '""'),
        (Grammar('start: INT "+" INT\n%import common.INT'), "12", "+0"),
        (JsonSchema.of({"type": "string", "pattern": "^[a-z]+zq[0-9]$"}), '"ab', 'zq0"'),
        (JsonSchema.of({"type": "string", "pattern": "^[a-z]+zq[0-9]$"}), '"abz', 'q0"'),
        (JsonSchema.of({"type": "string", "pattern": "zq", "minLength": 9}), '"zz', 'aaaaazq"'),
    ],
)
def test_other_constraints_close_as_well(spec: Any, text: str, ending: str) -> None:
    assert close(spec, text) == ending


TRAPS = JsonSchema.of(
    {
        "type": "object",
        "properties": {
            "free": {"type": "string", "minLength": 2},
            "id": {"type": "string", "pattern": "^[a-z]+zq[0-9]$"},
            "list": {"type": "array", "minItems": 2, "items": {"pattern": "^(ab|[a-z]{3,}xy)!$"}},
            "names": {"type": "object", "minProperties": 1, "additionalProperties": False,
                      "patternProperties": {"^[a-z]+-[a-z]+vw$": {"type": "string"}}},
        },
        "required": ["free", "id", "list", "names"],
        "additionalProperties": False,
    },
    finish="close",
)  # fmt: skip
TRAPPED = '{"free": "né", "id": "abzq7", "list": ["ab!", "qqqqxy!"], "names": {"a-bvw": ""}}'


@pytest.mark.parametrize("cut", [*range(0, len(TRAPPED) - 3, 3), len(TRAPPED)])
def test_strings_with_a_pattern_are_completed_wherever_they_stand(cut: int) -> None:
    ending = close(TRAPS, TRAPPED[:cut])
    assert match(TRAPS, TRAPPED[:cut] + ending)
    assert len(ending) < 90


def test_a_text_that_is_wrong_already_is_not_repaired() -> None:
    with pytest.raises(IncompleteError, match="not a valid beginning") as caught:
        close(SCHEMA, '{"age": ')
    assert caught.value.partial == '{"age": '


def test_the_search_for_an_ending_is_bounded() -> None:
    with pytest.raises(IncompleteError, match="no valid ending"):
        close(Regex("(ab){9000}"), "ab")


def test_a_matcher_closes_from_where_it_is(compiler: Any) -> None:
    compiled = compiler.compile(SCHEMA)
    matcher = compiled.matcher()
    matcher.consume(compiler.vocabulary.encode('{"name": "abc'))
    ending = compiled.close(matcher.text_bytes())
    assert ending.startswith('","age":')
    matcher.consume(compiler.vocabulary.encode(ending))
    assert matcher.is_complete


GHENT = r" [A-Z][a-z]+( [a-z]+){1,5} Ghent( [a-z]+){0,3}\."


@pytest.mark.parametrize(
    ("regex", "whole", "longest"),
    [
        (GHENT, " The quick brown fox jumps over Ghent and more.", len(" Aa a Ghent.")),
        ("[a-z]+zq[0-9]", "abczq1", 4),
        ("(?=.*x)(?!.*yy)[x-z]{3,9}é", "zyzyxé", 4),
        (r"\d{4}-\d\d-\d\d( at \d\d:\d\d)?", "2024-01-31 at 10:59", 10),
    ],
)
def test_the_shortest_ending_of_a_regex_is_found_at_every_cut(
    regex: str, whole: str, longest: int
) -> None:
    spec, data = Regex(regex), whole.encode()
    for cut in range(len(data) + 1):
        ending = close(spec, data[:cut])
        assert match(spec, data[:cut].decode("utf-8", "ignore") + ending)
        assert len(ending) <= longest


def test_a_regex_inside_of_other_constraints_is_closed_as_well() -> None:
    inside = {"type": "object", "properties": {"a": {"type": "string", "pattern": f"^{GHENT}$"}},
              "required": ["a"]}  # fmt: skip
    for spec, text in (
        (JsonSchema.of(inside), '{"a": " The quick brown'),
        (Grammar(f'start: "x" T "!"\nT: /{GHENT}/'), "x The quick brown"),
    ):
        for cut in range(len(text) + 1):
            ending = close(spec, text[:cut])
            assert match(spec, text[:cut] + ending)
            assert len(ending) < 60
