"""The parts of a regex from Python's own parser, and the pattern of a single character.

Other dialects are parsed into the same parts, so that one translation serves all of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import numpy as np

from radixlang.runtime.constraints.regex.pattern import (
    ANY_CHAR,
    MAX_CODE_POINT,
    NOTHING,
    Chars,
    LiteralText,
    Pattern,
    chars,
    negate,
)

_NEW_HOME = sys.version_info >= (3, 11)  # Python moved its regex parser into the re package
# no stub describes its modules for every Python that we support
ops: Any = import_module("re._constants" if _NEW_HOME else "sre_constants")
parser: Any = import_module("re._parser" if _NEW_HOME else "sre_parse")

NEWLINE = chars([(10, 10)])
_LAST_CASED = 0x1E943  # Adlam; no later character has a case

Op: TypeAlias = object  # compared by identity with those of `ops`
Argument: TypeAlias = Any  # a code point, a count, a body, tuples of them, by the operation
Item: TypeAlias = "tuple[Op, Argument, int]"  # flags in force are the last


class Body(Protocol):
    """A parsed regex, or a part of one."""

    def __iter__(self) -> Iterator[tuple[Op, Argument]]: ...
    def getwidth(self) -> tuple[int, int]: ...


def flatten(body: Body, flags: int) -> list[Item]:
    """Items of a parsed body with groups flattened, each with the flags in force."""
    items: list[Item] = []
    for op, value in body:
        if op is ops.SUBPATTERN:
            _, add, remove, inner = value
            items.extend(flatten(inner, (flags | add) & ~remove))
        else:
            items.append((op, value, flags))
    return items


def is_assertion(op: Op) -> bool:
    return op is ops.AT or op is ops.ASSERT or op is ops.ASSERT_NOT


def has_assertion(value: Argument) -> bool:
    """Whether a parsed body or argument contains an assertion."""
    if isinstance(value, parser.SubPattern):
        return any(is_assertion(op) or has_assertion(arg) for op, arg in value)
    if isinstance(value, (tuple, list)):
        return any(has_assertion(part) for part in value)
    return False


def one_character(op: Op, value: Argument, flags: int) -> Pattern | None:
    """The pattern of an item of one character; None for any other item."""
    if op is ops.LITERAL:
        return _literal(value, flags)
    if op is ops.NOT_LITERAL:
        return negate(_fold(chars([(value, value)]), flags))
    if op is ops.ANY:
        return ANY_CHAR if flags & re.DOTALL else negate(NEWLINE)
    return _char_class(value, flags) if op is ops.IN else None


def _literal(code: int, flags: int) -> Pattern:
    if flags & re.IGNORECASE:
        folded = _fold(chars([(code, code)]), flags)
        if folded.ranges != ((code, code),):
            return folded
    return LiteralText(chr(code)) if chars([(code, code)]).ranges else NOTHING


def _char_class(items: Iterable[tuple[Op, Argument]], flags: int) -> Chars:
    ranges: list[tuple[int, int]] = []
    closed: list[tuple[int, int]] = []  # categories contain every case of their characters
    is_negated = False
    for op, value in items:
        if op is ops.NEGATE:
            is_negated = True
        elif op is ops.LITERAL:
            ranges.append((value, value))
        elif op is ops.RANGE:
            ranges.append(value)
        else:  # CATEGORY
            closed.extend(category(value, bool(flags & re.ASCII)).ranges)
    found = chars([*_fold(chars(ranges), flags).ranges, *closed])
    return negate(found) if is_negated else found


def _fold(body: Chars, flags: int) -> Chars:
    """The class with every character that equals one of it if case is ignored."""
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
    """Characters that Python's own matcher takes for `code` if case is ignored."""
    same = re.compile(re.escape(chr(code)), re.IGNORECASE | (re.ASCII if is_ascii else 0))
    return tuple(ord(char) for char in same.findall(_cased()))


@lru_cache(maxsize=16)
def category(kind: Op, is_ascii: bool) -> Chars:
    """\\d, \\w, \\s and their complements, exactly as in Python's matcher."""
    negative = {
        ops.CATEGORY_NOT_DIGIT: ops.CATEGORY_DIGIT,
        ops.CATEGORY_NOT_WORD: ops.CATEGORY_WORD,
        ops.CATEGORY_NOT_SPACE: ops.CATEGORY_SPACE,
    }
    if kind in negative:
        return negate(category(negative[kind], is_ascii))
    escape = {
        ops.CATEGORY_DIGIT: r"\d", ops.CATEGORY_WORD: r"\w", ops.CATEGORY_SPACE: r"\s",
    }[kind]  # fmt: skip
    codes = np.arange(128 if is_ascii else MAX_CODE_POINT + 1, dtype="<u4")
    table = codes.tobytes().decode("utf-32-le", "surrogatepass")  # each character at its code point
    return chars((run.start(), run.end() - 1) for run in re.finditer(f"{escape}+", table))


def name_of(op: Op) -> str:
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


def with_caret(source: str, position: int | None, message: str) -> str:
    """A message with a caret at a place of a regex."""
    at = position or 0
    start = max(0, at - 30)
    shown = source[start : at + 30].replace("\n", " ")
    return f"{message} (column {at + 1})\n  {shown}\n  {' ' * (at - start)}^"


def with_place(source: str, op: Op, why: str) -> str:
    """A message about a part of a regex, with its place if that is found."""
    name = name_of(op)
    match = _PLACES.get(name, re.compile(r"(?!)")).search(source)
    if match is None:
        return f"{name} {why}, in the regex /{source[:200]}/"
    return with_caret(source, match.start(), f"{name} {why}")


# how to find a construct in the source, for the caret
_PLACES = {
    "an anchor or word boundary": re.compile(r"(?<!\\)(?:\\\\)*(?:\^|\$|\\[bBAZ])"),
    "a lookaround": re.compile(r"\(\?<?="),
    "a negative lookaround": re.compile(r"\(\?<?!"),
    "a back-reference": re.compile(r"\\[1-9]|\(\?P="),
    "a conditional group": re.compile(r"\(\?\("),
    "an atomic group": re.compile(r"\(\?>"),
    "a possessive repetition": re.compile(r"[*+?}]\+"),
}
