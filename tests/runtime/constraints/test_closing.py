"""finish="close": a truncated text gets a short valid ending, and is never repaired otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.constraints import Choices, Grammar, JsonSchema, Regex, match
from radixlang.errors import IncompleteError
from radixlang.runtime.constraints import byte_constraint

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
    ],
)
def test_other_constraints_close_as_well(spec: Any, text: str, ending: str) -> None:
    assert close(spec, text) == ending


def test_a_text_that_is_wrong_already_is_not_repaired() -> None:
    with pytest.raises(IncompleteError, match="not a valid beginning") as caught:
        close(SCHEMA, '{"age": ')
    assert caught.value.partial == '{"age": '


def test_the_search_for_an_ending_is_bounded() -> None:
    with pytest.raises(IncompleteError, match="no valid ending"):
        close(Regex("(ab){9000}"), "ab")


def test_a_matcher_closes_from_where_it_is(compiler: Any) -> None:
    matcher = compiler.compile(SCHEMA).matcher()
    matcher.consume(compiler.vocabulary.encode('{"name": "abc'))
    ending = matcher.close()
    assert ending.startswith('","age":')
    matcher.consume(compiler.vocabulary.encode(ending))
    assert matcher.is_complete
