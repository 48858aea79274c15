"""Hostile constraints: each is refused or compiled within a bound, and nothing keeps running."""

from __future__ import annotations

import threading
import time
from typing import Any

import llguidance
import pytest

from radixlang.constraints.specs import Grammar, JsonSchema, Regex, Sequence, match
from radixlang.errors import ConstraintError, InvalidConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints import compiled as constraints
from radixlang.runtime.constraints import vocabulary
from radixlang.runtime.constraints.compiled import ConstraintCompiler, byte_constraint
from radixlang.runtime.constraints.grammar import finished_text
from radixlang.runtime.constraints.grammar.unbounded import may_force
from radixlang.runtime.constraints.mask_worker import MaskWorker
from radixlang.runtime.constraints.matcher import Matcher
from radixlang.runtime.constraints.regex.backtracking import backtracks
from radixlang.runtime.constraints.regex.python_regex import translate
from radixlang.runtime.constraints.schema.rewriting import Rewriter
from radixlang.runtime.constraints.time_limit import within
from radixlang.runtime.constraints.vocabulary import Vocabulary


def _nested(count: int, inner: Any, wrap: Any) -> Any:
    for index in range(count):
        inner = wrap(inner, index)
    return inner


REFUSED = {
    "counted repetitions": (Regex("(((a{1,99}){1,99}){1,99}){1,99}"), "positions"),
    "parentheses": (Regex("(" * 3000 + "a" + ")" * 3000), "nested too deeply"),
    "optional items": (Grammar("start: " + '"a"? ' * 40), "5,000 alternatives"),
    "counted items": (Grammar('start: ("a"|"b")~1..40'), "5,000 alternatives"),
    "terminals in one place": (
        Grammar("start: " + " | ".join(f'"k{i}" "x"' for i in range(1100))), "pairs of terminals",
    ),
    "backtracking on a keyword": (
        Grammar('start: A | "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac"\nA: /(a+)+b/'), "read in one way",
    ),
    "a template without end": (
        Grammar('start: t{"a"}\nt{x}: x t{u{x}}\nu{x}: x'), "expands itself without end",
    ),
    "ten megabytes": (JsonSchema.of({"enum": ["x" * 10_000_000]}), "characters; at most"),
    "properties": (
        JsonSchema.of({"properties": {f"p{i}": {"type": "string"} for i in range(50_000)}}),
        "too complex",
    ),
    "properties in one object": (
        JsonSchema.of({"properties": {f"p{i}": {"type": "string"} for i in range(2_500)}}),
        "#/properties: too complex; objects with 2,400 properties",
    ),
    "options with properties": (
        JsonSchema.of({"anyOf": [
            {"type": "object", "properties": {f"k{j}": {"const": i} for j in range(20)}}
            for i in range(1600)
        ]}), "too complex",
    ),
    "alternatives of alternatives": (
        JsonSchema.of({"allOf": [
            {"anyOf": [{"properties": {f"p{i}": {"const": j}}} for j in range(4)]}
            for i in range(16)
        ]}), "too complex",
    ),
    "depth": (
        JsonSchema.of(_nested(180, {}, lambda s, _: {"properties": {"a": s}})), "nested|complex",
    ),
    "remainders": (JsonSchema.of({"type": "integer", "multipleOf": 999_983}), "remainders"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_grows_too_large_is_refused_by_name(name: str) -> None:
    spec, reason = REFUSED[name]
    with pytest.raises(UnsupportedConstraintError, match=reason):
        byte_constraint(spec)


def test_a_number_of_thousands_of_digits_is_an_error_of_the_schema() -> None:
    with pytest.raises(InvalidConstraintError, match="cannot be"):
        byte_constraint(JsonSchema('{"minimum":' + "9" * 100_000 + "}"))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (Regex("((((a*)*)*)*)*b"), "a" * 5000 + "b"),
        (Regex("(a|a|aa)*b"), "a" * 5000 + "b"),
        (Regex("a{9000}b{9000}"), "a" * 9000 + "b" * 9000),
        (Regex("".join(f"(?=.*{c})" for c in "abcdefgh") + ".*"), "hgfedcba" * 9),
        (
            JsonSchema.of({
                "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}
                          for i in range(40)} | {"d40": {"type": "null"}},
                "$ref": "#/$defs/d0",
            }), "null",
        ),
    ],
)  # fmt: skip
def test_what_ruins_backtracking_and_copying_is_harmless(spec: Any, text: str) -> None:
    assert match(spec, text)
    assert not match(spec, text + "\n!")


# The error may come while a finaliser of anybody runs, which drops it; it is sent again then.
def test_compiling_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "MAX_GRAMMAR_S", 0.05)
    rules = "\n".join(f'r{i}: r{i + 1} r{i + 1} | "a{i}" r{i + 1}' for i in range(2000))
    spec = Grammar(f'start: r0\n{rules}\nr2000: "x"')
    compiler = ConstraintCompiler(Vocabulary.of_bytes())
    with pytest.raises(UnsupportedConstraintError, match=r"took longer than 0.05 s"):
        compiler.compile(spec)
    assert compiler.compile(Regex("a")).matcher().forced_tokens() == [97]


def test_a_schema_with_much_to_leave_out_is_rewritten_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[Any] = []
    monkeypatch.setattr(
        Rewriter, "run", lambda self, run=Rewriter.run: (runs.append(1), run(self))[1]
    )
    part = {"type": "array", "items": {}, "contains": {"type": "null"}, "uniqueItems": True}
    spec = JsonSchema.of({"properties": {f"p{i}": part for i in range(90)}}, strict=False)
    ignored = ConstraintCompiler(Vocabulary.of_bytes()).compile(spec).ignored
    assert set(ignored) == {f"#/properties/p{i}/{keyword}" for i in range(90)
                            for keyword in ("contains", "uniqueItems")}  # fmt: skip
    assert len(runs) == 1


def test_a_circle_is_refused_by_the_pointer_of_its_schema() -> None:
    node = {"type": "object", "properties": {"n": {"$ref": "#/$defs/node", "minProperties": 1}},
            "allOf": [{"$ref": "#/$defs/node"}]}  # fmt: skip
    schema = {"$defs": {"node": node}, "properties": {"a": {"$ref": "#/$defs/node"}}}
    for strict in (True, False):
        with pytest.raises(
            UnsupportedConstraintError, match=r"^#/\$defs/node: it refers to itself"
        ):
            byte_constraint(JsonSchema.of(schema, strict=strict))


def test_a_bound_counts_computing_and_not_waiting() -> None:
    assert within(0.1, lambda: time.sleep(0.4)) is None


class _Ungrateful:
    """An error that comes while this is taken down is lost; it has to come again."""

    def __del__(self) -> None:
        for _ in range(3):
            time.sleep(0)


def test_a_bound_stops_python_in_its_thread_and_leaves_none_behind() -> None:
    def run_for_ever() -> None:
        while True:
            try:
                time.sleep(0)
            except Exception:  # what is stopped must not be able to go on
                continue
            finally:
                _Ungrateful()

    before = set(threading.enumerate())
    with pytest.raises(TimeoutError, match=r"longer than 0.02 s"):
        within(0.02, run_for_ever)
    assert within(5.0, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(5.0, lambda: 1 // 0)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "spec",
    [
        Grammar('start: A A\nA: "a"+'),
        Grammar('start: "x" y | A\ny: A A\nA: /(?!.*b)[ab]+/'),
        Sequence((Regex("1+"), JsonSchema.of({"const": 11}))),
        Sequence((Regex("a+"), Grammar('start: "a"'))),
    ],
)
def test_a_single_way_on_without_end_is_not_followed(spec: Any, allowed_tokens: Any) -> None:
    """The engine itself would look for forced text for ever, and hold the process meanwhile."""
    matcher = byte_constraint(spec).matcher()
    for _ in range(50):
        assert matcher.forced_tokens() == []
        matcher.consume([min(allowed_tokens(matcher))])
    assert not matcher.is_finished


@pytest.mark.parametrize(
    ("regex", "forces", "tries"),
    [
        ("[a-z]+", False, False), ("a+", True, False), ("(ab?)+", False, False),
        (" +x", False, False), ("(aa|aaa)+", True, False), ("é+", True, False),
        ("(?!if)[a-z]+", False, False), ("(?!.*b)[ab]+", True, False),
        (r'"([^"\\]|\\.)*"', False, False), (r"(\r?\n)+", False, False),
        ("(a+)+b", False, True), ("(a|ab|b)*c", False, True), ("(_[a-z]+)*!", False, False),
        ("([a-z]+ ?)+!", False, True), ("([a-z]+ ?)+", False, False), (".*.*.*=", False, True),
        (r"\d+(,\d+)*;", False, False), ("[a-z]+ [a-z]+ [a-z]+!", False, False),
    ],
)  # fmt: skip
def test_terminals_that_can_run_for_ever_are_known(regex: str, forces: bool, tries: bool) -> None:
    pattern = translate(regex, whole=False).pattern
    assert (may_force(pattern), backtracks(pattern)) == (forces, tries)


def test_a_check_that_may_try_for_ever_runs_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """lark tries A first, 2**40 ways, before it finds that the text is a B."""
    spec = Grammar('start: A "!" | B "?"\nA: /(a+)+bb?b?b?/\nB: /a+(?!b)/')
    assert match(spec, "aab!")
    monkeypatch.setattr(finished_text, "MAX_OUTSIDE_S", 2.0)
    found = match(spec, "a" * 40 + "?")
    assert found.status == "rejected"
    assert "could not be checked" in found.expected


def test_a_grammar_that_takes_longer_for_each_token_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("radixlang.runtime.constraints.matcher.MAX_TOKEN_S", 0.001)
    matcher = byte_constraint(Grammar('start: s\ns: s s | s s s | "a"')).matcher()

    def read_on() -> None:
        for _ in range(3000):
            matcher.consume([97])
            matcher.allowed_row()

    with pytest.raises(ConstraintError, match=r"too complex"):
        read_on()


WORDS = r"^(?:\S+\s+){0,99}\S+$"
TWO_FIELDS = JsonSchema.of({
    "type": "object", "required": ["a", "b"],
    "properties": {name: {"type": "string", "pattern": WORDS} for name in "ab"},
})  # fmt: skip
SHORT = b'{"a": "x y", "b": "z"}'


def _words(num: int) -> bytes:
    words = " ".join("abcdefgh"[: 1 + i % 8] for i in range(num))
    return f'{{"a": "{words}", "b": "{words}"}}'.encode()


def _read(matcher: Matcher, data: bytes) -> None:
    for byte in data:
        matcher.allowed_row()
        matcher.consume([byte])


def test_a_text_beyond_a_bound_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of an engine share the states of its lexer, and the bound on their number."""
    limits = llguidance.LLParserLimits(max_lexer_states=800, verbose_errors=False)
    monkeypatch.setattr(vocabulary, "LIMITS", limits)
    compiled = ConstraintCompiler(Vocabulary.of_bytes()).compile(TWO_FIELDS)
    begun, hog = compiled.matcher(), compiled.matcher()
    begun.consume(SHORT[:8])
    ahead = begun.fork()
    with pytest.raises(UnsupportedConstraintError, match="too many states"):
        _read(hog, _words(60))
    for matcher, rest in ((begun, SHORT[8:]), (ahead, SHORT[8:]), (compiled.matcher(), SHORT)):
        for byte in rest:
            assert matcher.allowed_row().any()
            assert matcher.num_valid([byte]) == 1
            matcher.consume([byte])
        assert matcher.is_complete
        assert matcher.text_bytes() == SHORT
        matcher.rollback(3)
        assert not matcher.is_complete


def test_masks_of_texts_that_shared_a_bound_are_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = llguidance.LLParserLimits(max_lexer_states=800, verbose_errors=False)
    monkeypatch.setattr(vocabulary, "LIMITS", limits)
    compiled = ConstraintCompiler(Vocabulary.of_bytes()).compile(TWO_FIELDS)
    matchers = [compiled.matcher() for _ in range(3)]
    with pytest.raises(UnsupportedConstraintError, match="too many states"):
        _read(compiled.matcher(), _words(60))
    for index, matcher in enumerate(matchers):
        matcher.consume(_words(8 + index)[:60])
    worker = MaskWorker(1)
    assert worker.compute(matchers) == [None] * 3
    worker.close()
    fresh = ConstraintCompiler(Vocabulary.of_bytes()).compile(TWO_FIELDS)
    for index, matcher in enumerate(matchers):
        expected = fresh.matcher()
        expected.consume(_words(8 + index)[:60])
        assert matcher.allowed_row().tolist() == expected.allowed_row().tolist()


@pytest.mark.parametrize("depth", [3_000, 100_000])
def test_a_deep_text_is_judged_or_told_to_be_too_deep(depth: int) -> None:
    text = "[" * depth + "]" * depth
    assert match(JsonSchema.of({}), text)
    unique = {"type": "array", "uniqueItems": True}
    found = match(JsonSchema.of(unique, strict=False), text)
    assert found.status == "rejected"
    assert "nested too deeply" in found.expected
