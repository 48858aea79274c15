"""Formats: no text is taken that the checker of jsonschema refuses."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from radixlang.constraints.specs import JsonSchema, match
from radixlang.errors import InvalidConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints.compiled import byte_constraint
from radixlang.runtime.constraints.schema.keywords.formats import FORMATS, conforms

CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER
OF_STRINGS = [name for name, found in FORMATS.items() if not found.says_nothing_of_strings]
COMPARED = [name for name in OF_STRINGS if name in CHECKER.checkers]


def _walk(compiled: Any, rng: np.random.Generator, num_bytes: int) -> str | None:
    """Random bytes of the masks, closed as soon as it can be after so many."""
    matcher = compiled.matcher()
    for step in range(200):
        if matcher.is_complete:
            text: str = json.loads(matcher.text_bytes().decode())
            return text
        bits = np.unpackbits(matcher.allowed_row().view(np.uint8), bitorder="little")
        choices = np.flatnonzero(bits).tolist()
        is_late = step > num_bytes and ord('"') in choices
        matcher.consume([ord('"') if is_late else int(rng.choice(choices))])
    return None


def _is_judged_right(name: str, text: str) -> bool:
    """jsonschema's checker takes no digit behind a zero in a relative pointer."""
    return name != "relative-json-pointer" or "0" not in text


@pytest.mark.parametrize("name", OF_STRINGS)
def test_what_masks_write_is_of_the_format(name: str) -> None:
    compiled = byte_constraint(JsonSchema.of({"type": "string", "format": name}, whitespace=0))
    rng = np.random.default_rng(7)
    texts = {_walk(compiled, rng, int(rng.integers(3, 40))) for _ in range(60)} - {None}
    assert len(texts) > 20
    for text in texts:
        assert text is not None
        assert conforms(name, text), text
        if name in COMPARED and _is_judged_right(name, text):
            assert CHECKER.conforms(text, name), text


TEXTS: dict[str, tuple[list[str], list[str]]] = {
    "date": (["2024-02-29", "2000-02-29", "0001-01-01", "2023-12-31"],
             ["2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "0000-01-01", "2023-1-1"]),
    "time": (["10:00:00Z", "23:59:59.123+05:30", "00:00:00z"],
             ["10:00:60", "10:00:60Z", "24:00:00Z", "10:00:00", "10:00:00+24:00"]),
    "date-time": (["2024-02-29T10:00:00Z", "2024-01-01t00:00:00.5-03:00"],
                  ["2023-02-29T10:00:00Z", "2024-01-01 10:00:00Z", "2024-01-01T10:00:60Z"]),
    "uri": (["a:b", "http://é.example".replace("é", "e"), "urn:x:y"], ["://", "a b:c", "1:b"]),
    "uri-reference": (["", "a", "./1:b", "/a?b#c", "//h:80/p", "a:b", "?q", "#f", "%41"],
                      ["://", "1:b", "a b", "%4", "#a#b", "//h:x", "\\"]),
    "iri": (["http://é.example/日本"], ["é", "://"]),
    "iri-reference": (["é/日本?ü", "é:b/c".replace(":", "/")], ["é:b", "a b"]),
    "uri-template": (["/a{?q,r*}", "{+path:3}/x", "a"], ["{a", "a}", "{}", "{a:0}"]),
    "json-pointer": (["", "/a~0b/~1"], ["a", "/~", "/~2"]),
    "relative-json-pointer": (["0", "1/a", "2#"], ["01", "#", "-1"]),
    "ipv4": (["1.2.3.4"], ["01.2.3.4", "1.2.3", "256.1.1.1"]),
    "ipv6": (["::1", "1::8"], ["1", ":::"]),
    "hostname": (["a-b.c"], ["a_b", "-a"]),
    "base64": (["", "QQ==", "QUJD"], ["QQ=", "Q", "Q!=="]),
    "uuid4": (["8c3f8a34-1c3d-4b8e-9f00-0123456789ab"],
              ["8c3f8a34-1c3d-1b8e-9f00-0123456789ab", "8c3f8a34"]),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_are_of_a_format_and_texts_that_are_not(name: str) -> None:
    schema = {"type": "string", "format": name}
    for right, texts in zip((True, False), TEXTS[name], strict=True):
        for text in texts:
            assert bool(match(schema, json.dumps(text, ensure_ascii=False))) == right, text
            assert conforms(name, text) == right, text


def test_a_format_stands_with_a_pattern_and_its_complement_is_enforced() -> None:
    both = {"type": "string", "format": "date", "pattern": "^2"}
    assert match(both, '"2024-02-29"')
    assert not match(both, '"1999-01-01"')
    neither = {"type": "string", "not": {"format": "date"}}
    assert match(neither, '"today"')
    assert not match(neither, '"2024-02-29"')
    with pytest.raises(InvalidConstraintError, match="no value"):
        match(JsonSchema.of(neither, formats="annotate"), '"x"')


@pytest.mark.parametrize("name", ["time", "date-time", "uri", "uri-reference", "uri-template"])
def test_a_format_of_which_masks_write_a_part_has_no_complement(name: str) -> None:
    """A leap second is a time, though masks write none: it is not among what is no time."""
    with pytest.raises(UnsupportedConstraintError, match=f"not of the format '{name}'"):
        match({"type": "string", "not": {"format": name}}, '"x"')


def test_strict_false_checks_the_formats_of_the_finished_text() -> None:
    """The keyword that is left out is looked at after the fact, what is inside of it as well."""
    schema = {"type": "array", "contains": {"type": "string", "format": "date"}}
    lenient = JsonSchema.of(schema, strict=False)
    assert match(lenient, '["x", "2024-02-29"]')
    assert not match(lenient, '["x", "2023-02-29"]')
    regex = JsonSchema.of({"type": "string", "format": "regex"}, strict=False)
    assert byte_constraint(regex).ignored == ("#/format",)
    assert match(regex, '"a+"')
    assert not match(regex, '"a("')
    remark = JsonSchema.of(schema, strict=False, formats="annotate")
    assert match(remark, '["x"]')


def test_formats_of_numbers_are_ranges() -> None:
    assert match({"type": "integer", "format": "int32"}, "2147483647")
    assert not match({"type": "integer", "format": "int32"}, "2147483648")
    assert match({"type": "integer", "format": "int32", "maximum": 5}, "-7")
    assert not match({"type": "integer", "format": "int32", "maximum": 5}, "6")
