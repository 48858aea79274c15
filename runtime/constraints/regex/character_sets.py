"""The characters with which a pattern can begin or end, and those in it; maybe supersets."""

from __future__ import annotations

from radixlang.runtime.constraints.regex.pattern import (
    ANY_CHAR,
    Alt,
    And,
    Cat,
    Chars,
    LiteralText,
    Not,
    Pattern,
    Repeat,
    chars,
    is_nullable,
)

NO_CHARS = Chars(())


def first_characters(pattern: Pattern) -> Chars:
    """A superset of the characters with which a match can begin."""
    return _at_edge(pattern, 1)


def last_characters(pattern: Pattern) -> Chars:
    """A superset of the characters with which a match can end."""
    return _at_edge(pattern, -1)


def _at_edge(pattern: Pattern, step: int) -> Chars:
    """Read forwards (1) or backwards (-1): the characters that can come first."""
    match pattern:
        case LiteralText(value):
            return alphabet(LiteralText(value[::step][:1]))
        case Chars():
            return pattern
        case Cat(parts):
            found: list[tuple[int, int]] = []
            for part in parts[::step]:
                found.extend(_at_edge(part, step).ranges)
                if not is_nullable(part):
                    break
            return chars(found)
        case Alt(options):
            return chars(r for option in options for r in _at_edge(option, step).ranges)
        case Repeat(body, _, _):
            return _at_edge(body, step)
        case And(left, _):
            return _at_edge(left, step)
        case Not():
            return ANY_CHAR


def alphabet(pattern: Pattern) -> Chars:
    """A superset of the characters in texts of the pattern."""
    match pattern:
        case LiteralText(value):
            return chars((ord(char), ord(char)) for char in value)
        case Chars():
            return pattern
        case Cat(parts) | Alt(parts):
            return chars(r for part in parts for r in alphabet(part).ranges)
        case Repeat(body, _, _):
            return alphabet(body)
        case And(left, _):
            return alphabet(left)
        case Not():
            return ANY_CHAR


def overlap(a: Chars, b: Chars) -> bool:
    return any(l1 <= h2 and l2 <= h1 for l1, h1 in a.ranges for l2, h2 in b.ranges)


def num_left(body: Chars, banned: Chars) -> int:
    """Characters of a class that are not banned."""
    gone = chars(
        (max(l1, l2), min(h1, h2))
        for l1, h1 in body.ranges
        for l2, h2 in banned.ranges
        if l1 <= h2 and l2 <= h1
    )
    return _count(body) - _count(gone)


def _count(body: Chars) -> int:
    return sum(high - low + 1 for low, high in body.ranges)


def united(a: Chars | None, b: Chars | None) -> Chars | None:
    return None if a is None or b is None else chars([*a.ranges, *b.ranges])
