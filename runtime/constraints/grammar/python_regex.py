"""Python regexes, read by Python's own parser and rewritten as patterns.

A regex is either a whole text (`re.fullmatch`) or a token, of which neither what stands before
nor what follows is known. Assertions become conditions on the part of the text left or right of
them: X(?!Y)Z is X (Z & ~(Y .*)), and (?<!Y) is its mirror image.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias

from radixlang.errors import InvalidConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints.grammar.pattern import (
    ANY_CHAR,
    ANY_TEXT,
    EMPTY,
    NOTHING,
    Chars,
    Not,
    Pattern,
    Text,
    alt,
    both,
    cat,
    chars,
    is_nullable,
    min_width,
    negate,
    prefix_free,
    repeat,
    size,
)

_NEW_HOME = sys.version_info >= (3, 11)  # Python moved its regex parser into the re package
ops: Any = import_module("re._constants" if _NEW_HOME else "sre_constants")
parser: Any = import_module("re._parser" if _NEW_HOME else "sre_parse")

MAX_PATTERN_CHARS = 100_000
MAX_REPEAT_COUNT = 20_000
MAX_PATTERN_NODES = 50_000
MAX_CONDITIONS = 300  # ways in which the assertions of one regex can hold
MAX_PATTERN_SIZE = 60_000  # positions once repetitions are written out

_NEWLINE = chars([(10, 10)])
_LAST_CASED = 0x1E943  # Adlam; no later character has a case

Item: TypeAlias = "tuple[Any, Any, int]"  # operation, argument, flags in force


@dataclass(frozen=True, slots=True)
class Condition:
    """One way to fulfil an assertion: what the text left and right of it must be.

    `reach` is how many characters it looks at; None means all of them.
    """

    left: Pattern | None = None
    right: Pattern | None = None
    reach: int | None = None


@dataclass(slots=True)
class Translation:
    """A regex as a pattern, and the conditions on its surroundings that had to be dropped."""

    pattern: Pattern
    dropped: list[str] = field(default_factory=list)


def translate(source: str, flags: int = 0, *, whole: bool = True) -> Translation:
    """A Python regex as a pattern.

    Args:
        source: the regex.
        flags: of the `re` module.
        whole: it must match a whole text; False for a token inside of one.

    Raises:
        InvalidConstraintError: Python cannot compile it.
        UnsupportedConstraintError: it holds a construct that is not regular, by name.
    """
    if len(source) > MAX_PATTERN_CHARS:
        raise UnsupportedConstraintError(
            f"the regex has {len(source)} characters; at most {MAX_PATTERN_CHARS} are taken"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of sets that may nest one day
            parsed = parser.parse(source, flags)
    except re.error as error:
        raise InvalidConstraintError(_caret(source, error.pos, f"bad regex: {error.msg}")) from None
    except RecursionError:
        raise UnsupportedConstraintError("the regex is nested too deeply") from None
    except OverflowError as error:
        raise InvalidConstraintError(f"bad regex: {error}") from None
    return _Translator(source, whole).run(parsed)


def _caret(source: str, position: int | None, message: str) -> str:
    at = position or 0
    start = max(0, at - 30)
    shown = source[start : at + 30].replace("\n", " ")
    return f"{message} (column {at + 1})\n  {shown}\n  {' ' * (at - start)}^"


class _Translator:
    def __init__(self, source: str, whole: bool) -> None:
        self.source, self.whole = source, whole
        self.dropped: list[str] = []
        self.num_nodes = self.num_conditions = 0
        self.is_lazy = False
        self.depth = 0  # repetitions and choices around the sequence at hand

    def run(self, parsed: Any) -> Translation:
        try:
            flags = parsed.state.flags
            pattern = self.sequence(_flatten(parsed, flags), is_cut=not self.whole)
        except RecursionError:
            raise UnsupportedConstraintError("the regex is nested too deeply") from None
        if self.is_lazy and not self.whole:
            pattern = prefix_free(pattern)
        if size(pattern) > MAX_PATTERN_SIZE:
            raise UnsupportedConstraintError(
                f"the regex has {size(pattern):,} positions with its repetitions written out; "
                f"at most {MAX_PATTERN_SIZE:,} are taken"
            )
        return Translation(pattern, self.dropped)

    def sequence(
        self, items: Sequence[Item], *, is_cut: bool, is_open: bool | None = None
    ) -> Pattern:
        """Items one after another.

        is_cut: what stands before them is not known here. is_open: nor is what follows.
        """
        is_open = not self.whole if is_open is None else is_open
        before: list[Pattern] = []
        for index, (op, value, flags) in enumerate(items):
            rest = items[index + 1 :] if _is_assertion(op) or op is ops.BRANCH else ()
            if _is_assertion(op):
                left = cat(*before)
                conditions = self.conditions(op, value, flags)
                return alt(*(self.under(c, left, rest, is_cut, is_open, op) for c in conditions))
            if op is ops.BRANCH and _has_assertion(value):
                left = cat(*before)
                ways = [self.spliced(branch, flags, rest) for branch in value[1]]
                return alt(*(self.resume(left, way, is_cut, is_open) for way in ways))
            is_end = index == len(items) - 1 and self.depth == 0 and not self.whole
            if op is ops.BRANCH and is_end:
                before.append(alt(*(self.ending(branch, flags) for branch in value[1])))
            else:
                before.append(self.item(op, value, flags))
        return cat(*before)

    def ending(self, branch: Any, flags: int) -> Pattern:
        """One way for a token to end: only a lazy one stops at its first match."""
        was_lazy, self.is_lazy = self.is_lazy, False
        pattern = self.inner(branch, flags)
        pattern = prefix_free(pattern) if self.is_lazy else pattern
        self.is_lazy = was_lazy
        return pattern

    def spliced(self, branch: Any, flags: int, rest: Sequence[Item]) -> list[Item]:
        return [*_flatten(branch, flags), *rest]

    def resume(self, left: Pattern, items: Sequence[Item], is_cut: bool, is_open: bool) -> Pattern:
        """The sequence of items after a left part that later assertions may look at."""
        seen: Item = ("PATTERN", left, 0)
        return self.sequence([seen, *items], is_cut=is_cut, is_open=is_open)

    def under(
        self, condition: Condition, left: Pattern, rest: Sequence[Item], is_cut: bool,
        is_open: bool, op: Any,
    ) -> Pattern:  # fmt: skip
        """Left and rest where a condition between them holds."""
        self.num_conditions += 1
        if self.num_conditions > MAX_CONDITIONS:
            raise self.refuse(op, f"can hold in more than {MAX_CONDITIONS} ways with the others")
        if condition.left is not None:
            left = self.meets_left(condition, left, is_cut, op)
        if condition.right is None:
            return self.resume(left, rest, is_cut, is_open)
        right = self.sequence(rest, is_cut=is_cut or left != EMPTY, is_open=is_open)
        return cat(left, self.meets_right(condition, right, is_open, op))

    def meets_left(self, condition: Condition, left: Pattern, is_cut: bool, op: Any) -> Pattern:
        assert condition.left is not None
        is_local = min_width(left) >= (1 if condition.reach is None else condition.reach)
        if is_cut and not is_local:
            raise self.refuse(op, "looks at text before this place that is not known here")
        return both(left, condition.left) if left != EMPTY else _if_empty(condition.left)

    def meets_right(self, condition: Condition, right: Pattern, is_open: bool, op: Any) -> Pattern:
        assert condition.right is not None
        is_local = condition.reach is not None and min_width(right) >= condition.reach
        if not is_open or is_local:
            return both(right, condition.right) if right != EMPTY else _if_empty(condition.right)
        if right == EMPTY or isinstance(condition.right, Not):
            self.dropped.append(_name(op))
            return right if right == EMPTY else both(right, condition.right)
        raise self.refuse(op, "looks at text after this token that is not known here")

    def conditions(self, op: Any, value: Any, flags: int) -> list[Condition]:
        """The ways to fulfil an assertion."""
        if op is ops.AT:
            return self.anchor(value, flags)
        direction, body = value
        inside, reach = _flatten(body, flags), _max_width(body)
        beyond: Item = ("PATTERN", ANY_TEXT, 0)
        if direction > 0:
            seen = self.sequence([*inside, beyond], is_cut=True, is_open=False)
            return [Condition(right=Not(seen) if op is ops.ASSERT_NOT else seen, reach=reach)]
        seen = self.sequence([beyond, *inside], is_cut=False, is_open=True)
        return [Condition(left=Not(seen) if op is ops.ASSERT_NOT else seen, reach=reach)]

    def anchor(self, kind: Any, flags: int) -> list[Condition]:
        line = bool(flags & re.MULTILINE)
        if kind in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
            if line and kind is ops.AT_BEGINNING:
                return [Condition(left=alt(EMPTY, cat(ANY_TEXT, _NEWLINE)), reach=1)]
            return [Condition(left=EMPTY)]
        if kind in (ops.AT_END, ops.AT_END_STRING):
            if kind is ops.AT_END_STRING:
                return [Condition(right=EMPTY)]
            after = cat(_NEWLINE, ANY_TEXT) if line else _NEWLINE
            return [Condition(right=alt(EMPTY, after), reach=1 if line else None)]
        return self.boundary(kind is ops.AT_BOUNDARY, flags)

    def boundary(self, is_boundary: bool, flags: int) -> list[Condition]:
        word = _category(ops.CATEGORY_WORD, bool(flags & re.ASCII))
        ends, ends_not = cat(ANY_TEXT, word), alt(EMPTY, cat(ANY_TEXT, negate(word)))
        starts, starts_not = cat(word, ANY_TEXT), alt(EMPTY, cat(negate(word), ANY_TEXT))
        pairs = [(ends, starts_not), (ends_not, starts)]
        if not is_boundary:
            pairs = [(ends, starts), (ends_not, starts_not)]
        return [Condition(left, right, 1) for left, right in pairs]

    def item(self, op: Any, value: Any, flags: int) -> Pattern:
        """One item that is not an assertion."""
        self.num_nodes += 1
        if self.num_nodes > MAX_PATTERN_NODES:
            raise UnsupportedConstraintError(
                f"the regex has more than {MAX_PATTERN_NODES} parts; make it shorter"
            )
        if op == "PATTERN":
            return value  # type: ignore[no-any-return]
        if op is ops.LITERAL:
            return _literal(value, flags)
        if op is ops.NOT_LITERAL:
            return negate(_fold(chars([(value, value)]), flags))
        if op is ops.ANY:
            return ANY_CHAR if flags & re.DOTALL else negate(_NEWLINE)
        if op is ops.IN:
            return _char_class(value, flags)
        if op is ops.BRANCH:
            return alt(*(self.inner(branch, flags) for branch in value[1]))
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            return self.repetition(op, value, flags)
        raise self.refuse(op, "is not a regular construct")

    def inner(self, body: Any, flags: int) -> Pattern:
        """A part under repetition or choice: neither of its sides is known."""
        self.depth += 1
        pattern = self.sequence(_flatten(body, flags), is_cut=True, is_open=True)
        self.depth -= 1
        return pattern

    def repetition(self, op: Any, value: Any, flags: int) -> Pattern:
        least, most, body = value
        if _has_assertion(body):
            raise self.refuse(op, "repeats a lookaround or an anchor")
        self.is_lazy |= op is ops.MIN_REPEAT
        limit = None if most is ops.MAXREPEAT else int(most)
        if max(least, limit or 0) > MAX_REPEAT_COUNT:
            raise UnsupportedConstraintError(
                f"the regex repeats {max(least, limit or 0)} times; at most {MAX_REPEAT_COUNT}"
            )
        return repeat(self.inner(body, flags), least, limit)

    def refuse(self, op: Any, why: str) -> UnsupportedConstraintError:
        name = _name(op)
        match = _PLACES.get(name, re.compile(r"(?!)")).search(self.source)
        if match is None:
            return UnsupportedConstraintError(f"{name} {why}, in the regex /{self.source[:200]}/")
        return UnsupportedConstraintError(_caret(self.source, match.start(), f"{name} {why}"))


def _flatten(body: Any, flags: int) -> list[Item]:
    """Items of a parsed body with groups opened, each with the flags in force."""
    items: list[Item] = []
    for op, value in body:
        if op is ops.SUBPATTERN:
            _, add, remove, inner = value
            items.extend(_flatten(inner, (flags | add) & ~remove))
        else:
            items.append((op, value, flags))
    return items


def _is_assertion(op: Any) -> bool:
    return op is ops.AT or op is ops.ASSERT or op is ops.ASSERT_NOT


def _has_assertion(value: Any) -> bool:
    """Whether an assertion stands anywhere in a parsed body or argument."""
    if isinstance(value, parser.SubPattern):
        return any(_is_assertion(op) or _has_assertion(arg) for op, arg in value)
    if isinstance(value, (tuple, list)):
        return any(_has_assertion(part) for part in value)
    return False


def _max_width(body: Any) -> int | None:
    widest = int(body.getwidth()[1])
    return widest if widest < 1_000_000 else None


def _if_empty(condition: Pattern) -> Pattern:
    """The empty text, if it fulfils a condition."""
    return EMPTY if is_nullable(condition) else NOTHING


def _literal(code: int, flags: int) -> Pattern:
    if flags & re.IGNORECASE:
        folded = _fold(chars([(code, code)]), flags)
        if folded.ranges != ((code, code),):
            return folded
    return Text(chr(code)) if chars([(code, code)]).ranges else NOTHING


def _char_class(items: Iterable[tuple[Any, Any]], flags: int) -> Chars:
    ranges: list[tuple[int, int]] = []
    closed: list[tuple[int, int]] = []  # categories hold every case of their characters
    is_negated = False
    for op, value in items:
        if op is ops.NEGATE:
            is_negated = True
        elif op is ops.LITERAL:
            ranges.append((value, value))
        elif op is ops.RANGE:
            ranges.append(value)
        else:  # CATEGORY
            closed.extend(_category(value, bool(flags & re.ASCII)).ranges)
    found = chars([*_fold(chars(ranges), flags).ranges, *closed])
    return negate(found) if is_negated else found


def _fold(body: Chars, flags: int) -> Chars:
    """The class with every character that equals one of it when case is ignored."""
    if not flags & re.IGNORECASE:
        return body
    is_ascii = bool(flags & re.ASCII)
    extra = [
        (other, other)
        for low, high in body.ranges
        for code in _cased_between(low, high)
        for other in _variants(code, is_ascii)
    ]
    return chars([*body.ranges, *extra]) if extra else body


def _cased_between(low: int, high: int) -> Iterable[int]:
    if high - low < 256:
        return range(low, high + 1)
    return (code for code in map(ord, _cased()) if low <= code <= high)


@lru_cache(maxsize=1)
def _cased() -> str:
    return "".join(c for c in map(chr, range(_LAST_CASED + 1)) if c.lower() != c.upper())


@lru_cache(maxsize=4096)
def _variants(code: int, is_ascii: bool) -> tuple[int, ...]:
    """Characters that Python's own matcher takes for `code` when case is ignored."""
    same = re.compile(re.escape(chr(code)), re.IGNORECASE | (re.ASCII if is_ascii else 0))
    return tuple(ord(char) for char in same.findall(_cased()))


@lru_cache(maxsize=16)
def _category(kind: Any, is_ascii: bool) -> Chars:
    """\\d, \\w, \\s and their opposites, exactly as Python's matcher has them."""
    negative = {
        ops.CATEGORY_NOT_DIGIT: ops.CATEGORY_DIGIT,
        ops.CATEGORY_NOT_WORD: ops.CATEGORY_WORD,
        ops.CATEGORY_NOT_SPACE: ops.CATEGORY_SPACE,
    }
    if kind in negative:
        return negate(_category(negative[kind], is_ascii))
    escape = {
        ops.CATEGORY_DIGIT: r"\d", ops.CATEGORY_WORD: r"\w", ops.CATEGORY_SPACE: r"\s",
    }[kind]  # fmt: skip
    runs = re.finditer(f"{escape}+", _every_character(128 if is_ascii else 0x110000))
    table = _every_character(128 if is_ascii else 0x110000)
    return chars((ord(table[run.start()]), ord(table[run.end() - 1])) for run in runs)


def _every_character(end: int) -> str:
    return "".join(map(chr, range(end)))


def _name(op: Any) -> str:
    return _NAMES.get(str(op), str(op).lower().replace("_", " "))


_NAMES = {
    "AT": "an anchor or word boundary",
    "ASSERT": "a lookaround",
    "ASSERT_NOT": "a negative lookaround",
    "GROUPREF": "a back-reference",
    "GROUPREF_EXISTS": "a conditional group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repetition",
    "MAX_REPEAT": "a repetition",
    "MIN_REPEAT": "a lazy repetition",
}

# where a construct stands in the source, for the caret
_PLACES = {
    "an anchor or word boundary": re.compile(r"(?<!\\)(?:\\\\)*(?:\^|\$|\\[bBAZ])"),
    "a lookaround": re.compile(r"\(\?<?="),
    "a negative lookaround": re.compile(r"\(\?<?!"),
    "a back-reference": re.compile(r"\\[1-9]|\(\?P="),
    "a conditional group": re.compile(r"\(\?\("),
    "an atomic group": re.compile(r"\(\?>"),
    "a possessive repetition": re.compile(r"[*+?}]\+"),
}
