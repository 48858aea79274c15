r"""Where in a text that still grows a match of a pattern may begin.

`partial_pattern` writes a pattern again so that it may end wherever the text ends: each character
`c` becomes `(?:c|\Z)`. The new pattern matches at a place if, and but for odd assertions only if,
the old one matches there or may once more text has come. So no text before its first match can
belong to a match of the old one. Once a way of matching has come to the end of the text, all that
is left of the pattern matches nothing there: it is as fast as the old pattern is in failing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_ANCHORS = {"AT_BEGINNING": "^", "AT_BEGINNING_STRING": r"\A", "AT_BOUNDARY": r"\b",
            "AT_NON_BOUNDARY": r"\B", "AT_END": "$", "AT_END_STRING": r"\Z"}  # fmt: skip
_CATEGORIES = {"CATEGORY_DIGIT": r"\d", "CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_SPACE": r"\s",
               "CATEGORY_NOT_SPACE": r"\S", "CATEGORY_WORD": r"\w",
               "CATEGORY_NOT_WORD": r"\W"}  # fmt: skip
_FLAGS = re.ASCII | re.IGNORECASE | re.MULTILINE | re.DOTALL
_LETTERS = {re.ASCII: "a", re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}
_REPEATS = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}
_ASSERTIONS = {"ASSERT", "ASSERT_NOT", "AT"}


class UnknownPartError(Exception):
    """A part of the pattern that cannot be written so."""


@lru_cache(maxsize=256)
def partial_pattern(pattern: str) -> re.Pattern[str] | None:
    """The pattern that may end with the text; None where it refers to its own groups."""
    try:
        # Imported at first need: few programs have a stop pattern.
        from radixlang.runtime.constraints.grammar.regex_items import parser

        tree = parser.parse(pattern)
        return re.compile(_Writer(r"|\Z").sequence(tree), tree.state.flags & _FLAGS)
    except (ImportError, UnknownPartError, RecursionError):
        return None


@dataclass(frozen=True)
class _Writer:
    """Writes a parsed pattern; `end` is the way out of each character and assertion."""

    end: str

    def sequence(self, nodes: Iterable[Any]) -> str:
        return "".join(self.node(node[0].name, node[1]) for node in nodes)

    def node(self, kind: str, value: Any) -> str:
        character = _character(kind, value)
        if character is not None:
            return f"(?:{character}{self.end})"
        if kind in _REPEATS:
            return self.repeat(*value)
        if kind == "BRANCH":
            return "(?:" + "|".join(map(self.sequence, value[1])) + ")"
        if kind == "SUBPATTERN":
            return f"(?{_flags(value[1], value[2])}:{self.sequence(value[3])})"
        if kind == "ATOMIC_GROUP":
            return f"(?:{self.sequence(value)})"
        return self.assertion(kind, value)

    def repeat(self, low: int, high: int, body: Any) -> str:
        most = "" if high >= 1 << 31 else str(int(high))
        if len(body) == 1 and (character := _character(body[0][0].name, body[0][1])):
            few = f"|{character}{{0,{low - 1}}}\\Z" if low and self.end else ""
            return f"(?:{character}{{{low},{most}}}{few})"
        return f"(?:{self.sequence(body)}){{{low},{most}}}"

    def assertion(self, kind: str, value: Any) -> str:
        if kind == "AT":
            return f"(?:{_ANCHORS[value.name]}{self.end})"
        if kind not in _ASSERTIONS:
            raise UnknownPartError(kind)
        direction, body = value
        sign = "=" if kind == "ASSERT" else "!"
        if direction > 0 and sign == "=":
            return f"(?={self.sequence(body)})"
        if _asserts(body):  # what it says of text that is there may change with what comes
            return ""
        before = "<" if direction < 0 else ""
        return f"(?:(?{before}{sign}{_Writer('').sequence(body)}){self.end})"


def _character(kind: str, value: Any) -> str | None:
    """A part that matches one character, None if it is none."""
    if kind == "LITERAL":
        return f"\\U{value:08x}"
    if kind == "NOT_LITERAL":
        return f"[^\\U{value:08x}]"
    if kind == "ANY":
        return "."
    if kind == "IN":
        return "[" + "".join(_item(item[0].name, item[1]) for item in value) + "]"
    return None


def _item(kind: str, value: Any) -> str:
    if kind == "NEGATE":
        return "^"
    if kind == "CATEGORY":
        return _CATEGORIES[value.name]
    low, high = value if kind == "RANGE" else (value, value)
    return f"\\U{low:08x}-\\U{high:08x}"


def _flags(added: int, removed: int) -> str:
    if added & re.UNICODE:
        raise UnknownPartError("(?u:…)")
    on = "".join(letter for flag, letter in _LETTERS.items() if added & flag)
    off = "".join(letter for flag, letter in _LETTERS.items() if removed & flag)
    return f"{on}-{off}" if off else on


def _asserts(value: Any) -> bool:
    """Whether an assertion or anchor stands anywhere in a parsed pattern."""
    if isinstance(value, (tuple, list)) or hasattr(value, "data"):
        return any(map(_asserts, getattr(value, "data", value)))
    return getattr(value, "name", "") in _ASSERTIONS
