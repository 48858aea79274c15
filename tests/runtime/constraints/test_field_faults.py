"""Faults that constrained generation has had elsewhere, by where they were reported."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from radixlang.constraints.specs import (
    Capture,
    Choices,
    Grammar,
    JsonSchema,
    Regex,
    Sequence,
    from_kwargs,
    match,
)
from radixlang.errors import ConstraintError, InvalidConstraintError, ParameterError


def test_outlines_684_tokens_may_cross_terminals(compiler: Any, allowed_tokens: Any) -> None:
    """A token such as {" or ": " holds the end of one terminal and the start of the next."""
    compiled = compiler.compile(JsonSchema.of({"type": "object"}))
    assert compiler.vocabulary.encode('{"')[0] in allowed_tokens(compiled.matcher())


def test_sglang_2045_1312_text_is_the_same_with_forced_tokens_on_and_off(compiler: Any) -> None:
    """Without forcing, the mask leaves the same token where text is forced."""
    schema = JsonSchema.of({"const": {"name": "日本", "xs": [12, 123]}}, whitespace=0)
    compiled = compiler.compile(schema)
    texts = []
    for uses_forced in (True, False):
        matcher = compiled.matcher()
        while not matcher.is_finished:
            forced = matcher.forced_tokens() if uses_forced else []
            bits = np.unpackbits(matcher.allowed_row().view(np.uint8), bitorder="little")
            matcher.consume(forced or [int(np.flatnonzero(bits)[-1])])
        texts.append((matcher.text_bytes(), matcher.tokens))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("option", ["a|b", "(x)", '"quoted"', "Dr. Smith", "a*", "\\d", "^$", ""])
def test_outlines_1275_choices_are_literal(option: str) -> None:
    choices = Choices((option, "zzz"))
    assert match(choices, option)
    assert not match(choices, "a")
    assert not match(choices, "1")


@pytest.mark.parametrize(("low", "high"), [(2, 4), (0, 1), (3, 3)])
def test_outlines_core_147_minimum_and_maximum_count(low: int, high: int) -> None:
    array = {"type": "array", "items": {"type": "null"}, "minItems": low, "maxItems": high}
    text = {"type": "string", "minLength": low, "maxLength": high}
    for num in range(6):
        assert bool(match(array, json.dumps([None] * num))) == (low <= num <= high)
        assert bool(match(text, json.dumps("é" * num, ensure_ascii=False))) == (low <= num <= high)


def test_xgrammar_749_895_pattern_keeps_the_length_beside_it() -> None:
    schema = {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}
    assert [bool(match(schema, json.dumps("a" * n))) for n in range(5)] == [0, 0, 1, 1, 0]
    assert not match(schema, '"A1"')


def test_guidance_1039_an_optional_key_cannot_come_late_as_an_additional_one() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}}
    assert match(schema, '{"b": null, "c": 1}')
    assert not match(schema, '{"b": null, "a": "not an integer"}')
    assert not match(schema, '{"c": 1, "a": "x"}')


@pytest.mark.parametrize("text", ['"\\\'"', '"\x01"', '"\n"', '"\t"', '"\\x41"', '"\\u12"'])
def test_lm_format_enforcer_41_wrong_escapes_and_raw_controls(text: str) -> None:
    assert not match({"type": "string"}, text)


def test_vllm_4093_no_blanks_until_max_tokens(compiler: Any, allowed_tokens: Any) -> None:
    matcher = compiler.compile(JsonSchema.of({"type": "object"}, whitespace=6)).matcher()
    matcher.consume([ord("{")])
    num_blanks = 0
    while ord(" ") in allowed_tokens(matcher):
        matcher.consume([ord(" ")])
        num_blanks += 1
    assert num_blanks == 6


def test_transformers_cfg_105_a_nullable_grammar_may_end_at_once(
    compiler: Any, allowed_tokens: Any
) -> None:
    for spec in (Grammar('start: "a"*'), Regex("a*"), Choices(("", "a"))):
        matcher = compiler.compile(spec).matcher()
        assert matcher.is_complete
        assert 256 in allowed_tokens(matcher)


def test_vllm_43920_llama_cpp_4492_a_bad_grammar_fails_one_call(compiler: Any) -> None:
    with pytest.raises(InvalidConstraintError):
        compiler.compile(Grammar("start: ("))
    assert compiler.compile(Grammar('start: "a"')).matcher().forced_tokens() == [97]


def test_mlx_vlm_1917_xgrammar_611_padded_ids(compiler: Any, allowed_tokens: Any) -> None:
    mask = allowed_tokens(compiler.compile(JsonSchema.of({"type": "string"})).matcher())
    assert max(mask) < 286


def test_vllm_11044_outlines_1771_special_tokens_inside_strings(
    compiler: Any, allowed_tokens: Any
) -> None:
    matcher = compiler.compile(JsonSchema.of({"type": "string"})).matcher()
    matcher.consume(list(b'"<ima'))
    assert not {256, 257, 258} & allowed_tokens(matcher)
    matcher.consume(list(b'ge><|im_end|>"'))
    assert matcher.is_complete


def test_sglang_18618_a_dead_end_raises(compiler: Any) -> None:
    matcher = compiler.compile(Regex("ab")).matcher()
    with pytest.raises(ConstraintError, match="not allowed"):
        matcher.consume([99])


def test_xgrammar_483_pieces_with_their_blank(compiler: Any, allowed_tokens: Any) -> None:
    """The token ' a' is one of the ways on after a word."""
    matcher = compiler.compile(Regex("[a-z]+ [a-z]+")).matcher()
    matcher.consume([ord("x")])
    blank_a = compiler.vocabulary.encode(" a")[0]
    assert blank_a in allowed_tokens(matcher)
    matcher.consume([blank_a])
    assert matcher.is_complete
    assert blank_a not in allowed_tokens(matcher)


def test_vllm_37642_an_empty_branch_before_everything_twice(compiler: Any) -> None:
    for _ in range(2):
        matcher = compiler.compile(Regex("^(|.*)$")).matcher()
        assert matcher.is_complete
        matcher.consume(list(b"abc"))
        assert matcher.is_complete
    both = {"type": "array", "items": {"type": "string", "pattern": "^(|.*)$"}, "minItems": 2}
    assert match(both, '["", "abc"]')


def test_several_constraints_raise() -> None:
    with pytest.raises(ParameterError, match="json_schema and grammar"):
        from_kwargs(json_schema={}, grammar='start: "a"')


def test_llguidance_error_states_are_errors(compiler: Any) -> None:
    """Its end-only mask in an error state would be a silently empty text."""
    for spec in (JsonSchema.of({"$ref": "#"}), Regex("(?=[0-9]+$)[a-z]+")):
        with pytest.raises(InvalidConstraintError):
            compiler.compile(spec)


def test_property_order_is_that_of_the_schema() -> None:
    schema = {"properties": {"b": {}, "a": {}}, "required": ["a"]}
    assert match(schema, '{"b": 1, "a": 2}')
    assert match(schema, '{"a": 2, "b": 1}').position > 0
    assert not match(schema, '{"a": 2, "b": 1}')


def test_xgrammar_132_accents_in_choices(compiler: Any, allowed_tokens: Any) -> None:
    matcher = compiler.compile(Choices(("café", "cafè"))).matcher()
    forced = matcher.forced_tokens()
    assert b"".join(compiler.vocabulary.token_bytes[t] for t in forced) == b"caf"
    matcher.consume(forced)
    matcher.consume(list("é".encode()))
    assert matcher.is_finished


def test_captures_of_a_sequence_are_as_long_as_they_can_be() -> None:
    spec = Sequence(
        (
            "Name: ", Capture("name", Regex("[A-Za-z ]+")), ", ",
            Capture("data", JsonSchema.of({"type": "array", "items": {"type": "integer"}})),
            Capture("rest", Regex("[a-z]*")), Regex("[a-z]!"),
        )
    )  # fmt: skip
    found = match(spec, "Name: Ada Lovelace, [1, 2]abc!")
    assert found.captures == {"name": "Ada Lovelace", "data": "[1, 2]", "rest": "ab"}
    assert match(spec, "Name: Ada, [1").status == "incomplete"


@pytest.mark.parametrize(
    ("spec", "text", "status", "position", "expected"),
    [
        (Regex("[a-c]{3}"), "abc", "accepted", 3, ""),
        (Regex("[a-c]{3}"), "ab", "incomplete", 2, "'a'–'c'"),
        (Regex("[a-c]{3}"), "abx", "rejected", 2, "'a'–'c'"),
        (Regex("日本語"), "日木", "rejected", 1, "'本語'"),
        (Choices(("yes", "no")), "maybe", "rejected", 0, "'n' or 'y'"),
        (Regex("[0-9]+"), "1x", "rejected", 1, "'0'–'9' or the end"),
        (Regex(".*"), "a\ud800b", "rejected", 1, "the end"),
    ],
)
def test_match_says_where_and_what_was_expected(
    spec: Any, text: str, status: str, position: int, expected: str
) -> None:
    found = match(spec, text)
    assert (found.status, found.position) == (status, position)
    assert expected in found.expected
