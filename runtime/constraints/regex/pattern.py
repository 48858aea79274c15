"""Regular languages as small trees, and their text in the mask engine's terminal language.

Python regexes, lark terminals and literals all become such trees. Conjunction and complement
express lookaround and lazy matching without backtracking (Brzozowski 1964).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class LiteralText:
    """Exactly these characters."""

    value: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of sorted, disjoint, inclusive ranges of code points."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Cat:
    """One part after another."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """Any one of the options; without options it matches nothing."""

    options: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `least` to `most` times; None is unbounded."""

    body: Pattern
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class And:
    """Texts that both sides match."""

    left: Pattern
    right: Pattern


@dataclass(frozen=True, slots=True)
class Not:
    """Texts that the body does not match. Used only in And, with a pattern of valid text."""

    body: Pattern


Pattern: TypeAlias = "LiteralText | Chars | Cat | Alt | Repeat | And | Not"

EMPTY = LiteralText("")
NOTHING = Alt(())


def chars(ranges: Iterable[tuple[int, int]]) -> Chars:
    """Chars of any ranges: sorted, merged, without surrogates (they are not in UTF-8)."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return Chars(tuple(merged))


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    first, last = _SURROGATES
    for low, high in ranges:
        if low < first:
            yield low, min(high, first - 1)
        if high > last:
            yield max(low, last + 1), high


def negate(body: Chars) -> Chars:
    """Every other character."""
    gaps, next_low = [], 0
    for low, high in body.ranges:
        if low > next_low:
            gaps.append((next_low, low - 1))
        next_low = high + 1
    if next_low <= MAX_CODE_POINT:
        gaps.append((next_low, MAX_CODE_POINT))
    return chars(gaps)


ANY_CHAR = chars([(0, MAX_CODE_POINT)])
ANY_TEXT = Repeat(ANY_CHAR, 0, None)


def cat(*parts: Pattern) -> Pattern:
    """Concatenation with neighbours merged."""
    flat: list[Pattern] = []
    letters: list[str] = []  # neighbouring texts, joined once
    for part in parts:
        if part == NOTHING:
            return NOTHING
        for piece in part.parts if isinstance(part, Cat) else (part,):
            if isinstance(piece, LiteralText):
                letters.append(piece.value)
                continue
            flat.extend(_joined(letters))
            letters.clear()
            flat.append(piece)
    flat.extend(_joined(letters))
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else Cat(tuple(flat))


def _joined(letters: list[str]) -> list[Pattern]:
    text = "".join(letters)
    return [LiteralText(text)] if text else []


def alt(*options: Pattern) -> Pattern:
    """Alternation without duplicate and impossible options."""
    flat: dict[Pattern, None] = {}
    for option in options:
        for piece in option.options if isinstance(option, Alt) else (option,):
            flat[piece] = None
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def both(left: Pattern, right: Pattern) -> Pattern:
    """Conjunction, simplified if one side is everything or nothing."""
    if right == ANY_TEXT:
        return left
    if left == ANY_TEXT and not isinstance(right, Not):
        return right
    if NOTHING in (left, right):
        return NOTHING
    return And(left, right)


def repeat(body: Pattern, least: int, most: int | None) -> Pattern:
    """Repetition, simplified."""
    if body == EMPTY or most == 0:
        return EMPTY
    return body if (least, most) == (1, 1) else Repeat(body, least, most)


def prefix_free(body: Pattern) -> Pattern:
    """Texts of body without one of them as a proper beginning, at which a lazy match stops."""
    return And(body, Not(cat(body, repeat(ANY_CHAR, 1, None))))


def min_width(pattern: Pattern) -> int:
    """Least characters of a match (a lower bound if there is a complement)."""
    match pattern:
        case LiteralText(value):
            return len(value)
        case Chars():
            return 1
        case Cat(parts):
            return sum(map(min_width, parts))
        case Alt(options):
            return min(map(min_width, options), default=0)
        case Repeat(body, least, _):
            return least * min_width(body)
        case And(left, right):
            return max(min_width(left), min_width(right))
        case Not():
            return 0


def size(pattern: Pattern) -> int:
    """Positions of a pattern with its bounded repetitions expanded."""
    match pattern:
        case LiteralText(value):
            return len(value)
        case Chars():
            return 1
        case Cat(parts) | Alt(parts):
            return sum(map(size, parts))
        case Repeat(body, least, most):
            return max(1, least if most is None else most) * size(body)
        case And(left, right):
            return size(left) + size(right)
        case Not(body):
            return size(body)


def is_nullable(pattern: Pattern) -> bool:
    """Whether the empty text matches."""
    match pattern:
        case LiteralText(value):
            return not value
        case Chars():
            return False
        case Cat(parts):
            return all(map(is_nullable, parts))
        case Alt(options):
            return any(map(is_nullable, options))
        case Repeat(body, least, _):
            return least == 0 or is_nullable(body)
        case And(left, right):
            return is_nullable(left) and is_nullable(right)
        case Not(body):
            return not is_nullable(body)


def is_plain(pattern: Pattern) -> bool:
    """Whether it is an ordinary regex, without conjunction and complement."""
    match pattern:
        case LiteralText() | Chars():
            return True
        case Cat(parts) | Alt(parts):
            return all(map(is_plain, parts))
        case Repeat(body, _, _):
            return is_plain(body)
        case And() | Not():
            return False


def to_terminal(pattern: Pattern) -> str:
    """The pattern as a terminal's right-hand side in the engine's grammar language."""
    if is_plain(pattern):
        return f"/{to_regex(pattern)}/"
    match pattern:
        case Cat(parts):
            return "(" + " ".join(map(to_terminal, parts)) + ")"
        case Alt(options):
            return "(" + " | ".join(map(to_terminal, options)) + ")"
        case Repeat(body, least, most):
            return f"({to_terminal(body)}){_times(least, most)}"
        case And():
            return "(" + " & ".join(map(to_terminal, conjuncts(pattern))) + ")"
        case Not(body):
            return f"~({to_terminal(body)})"
    raise AssertionError(pattern)  # every plain pattern was handled above


def conjuncts(pattern: Pattern) -> list[Pattern]:
    """The parts of nested conjunctions as one list: the engine limits nesting."""
    if isinstance(pattern, And):
        return [*conjuncts(pattern.left), *conjuncts(pattern.right)]
    return [pattern]


def to_regex(pattern: Pattern) -> str:
    """A plain pattern as a Rust regex; every special character is escaped."""
    match pattern:
        case LiteralText(value):
            return "".join(map(_escape, value)) or "(?:)"
        case Chars(ranges):
            return _class(ranges)
        case Cat(parts):
            return "".join(map(_grouped, parts))
        case Alt(options):
            return (
                "(?:" + "|".join(map(to_regex, options)) + ")"
                if options
                else "[^\\x{0}-\\x{10FFFF}]"
            )
        case Repeat(body, least, most):
            return f"{_grouped(body, repeated=True)}{_times(least, most)}"
    raise AssertionError(pattern)


def _grouped(pattern: Pattern, repeated: bool = False) -> str:
    text = to_regex(pattern)
    is_atom = isinstance(pattern, (Chars, Alt)) or (
        isinstance(pattern, LiteralText) and len(pattern.value) == 1
    )
    return f"(?:{text})" if not is_atom and (repeated or isinstance(pattern, Repeat)) else text


def _times(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"


def _escape(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}"


def _class(ranges: tuple[tuple[int, int], ...]) -> str:
    if ranges == ANY_CHAR.ranges:
        return "(?s:.)"
    if not ranges:
        return "[^\\x{0}-\\x{10FFFF}]"
    return "[" + "".join(_range(low, high) for low, high in ranges) + "]"


def _range(low: int, high: int) -> str:
    return _escape(chr(low)) if low == high else f"{_escape(chr(low))}-{_escape(chr(high))}"
