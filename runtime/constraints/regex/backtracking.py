"""Regexes for which a backtracking matcher, such as lark's lexer, may need exponential time.

With `(a+)+b` it may split one run of a's in exponentially many ways before it finds that there is
no b. Masks are not affected, but lark, which parses the finished text once more, is.
"""

from __future__ import annotations

from itertools import combinations

from radixlang.runtime.constraints.regex.character_sets import alphabet, first_characters, overlap
from radixlang.runtime.constraints.regex.pattern import (
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

MAX_CUTS = 24  # repetitions of a part that splits in two ways: 2**24 ways take a second
MAX_COMPARED = 200  # most options that are compared in pairs


def backtracks(pattern: Pattern, is_followed: bool = False) -> bool:
    """Whether a backtracking matcher may need exponential time for a text of this pattern.

    That is so if an unbounded repetition repeats a part that can be split in several ways (another
    repetition without a separator, or options that begin alike), and something that may fail to
    match follows it.

    Args:
        pattern: the pattern of a token, matched at the beginning of a text.
        is_followed: something must follow it.
    """
    match pattern:
        case LiteralText() | Chars():
            return False
        case Cat(parts):
            last = max((i for i, part in enumerate(parts) if not is_nullable(part)), default=0)
            here = parts if is_followed else parts[:last]
            return _num_blurred(here) > 2 or any(
                backtracks(part, is_followed or index < last) for index, part in enumerate(parts)
            )
        case Alt(options):
            return any(backtracks(option, is_followed) for option in options)
        case Repeat(body, _, most):
            is_long = most is None or most > MAX_CUTS
            return backtracks(body, is_followed) or (
                is_followed and is_long and _is_ambiguous(body)
            )
        case And(left, right):
            return backtracks(left, True) or backtracks(right, True)
        case Not(body):
            return backtracks(body, True)


def _is_ambiguous(body: Pattern) -> bool:
    """Whether repetitions of a body may be split in more than one way."""
    match body:
        case LiteralText() | Chars():
            return False
        case Alt(options):
            return any(map(_is_ambiguous, options)) or _begin_alike(options)
        case Repeat(inner, least, most):
            return least != most or _is_ambiguous(inner)
        case Cat(parts):
            return any(
                (isinstance(part, Alt) and _begin_alike(part.options))
                or (_varies(part) and not _is_set_apart(part, parts))
                for part in parts
            )
        case And(left, _):
            return _is_ambiguous(left)
        case Not():
            return True


def _varies(part: Pattern) -> bool:
    return isinstance(part, (Repeat, And)) and not (
        isinstance(part, Repeat) and part.least == part.most
    )


def _is_set_apart(part: Pattern, parts: tuple[Pattern, ...]) -> bool:
    """Whether a required neighbour of a part begins with a character that the part excludes."""
    inside = alphabet(part)
    others = [p for p in parts if p is not part and not is_nullable(p)]
    return any(not overlap(first_characters(other), inside) for other in others)


def _begin_alike(options: tuple[Pattern, ...]) -> bool:
    """Whether two options can begin with the same character and continue as the repetition."""
    if len(options) > MAX_COMPARED:
        return not all(isinstance(option, LiteralText) for option in options)
    first = chars(r for option in options for r in first_characters(option).ranges)
    return any(_alike(x, y, first) for x, y in combinations(options, 2))


def _alike(x: Pattern, y: Pattern, first: Chars) -> bool:
    if not (isinstance(x, LiteralText) and isinstance(y, LiteralText)):
        return overlap(first_characters(x), first_characters(y))
    short, long = sorted((x.value, y.value), key=len)
    rest = long[len(short) :] if long.startswith(short) else ""
    return bool(rest) and overlap(chars([(ord(rest[0]), ord(rest[0]))]), first)


def _num_blurred(parts: tuple[Pattern, ...]) -> int:
    """Number of neighbouring unbounded repetitions that share characters."""
    longest = run = 0
    last: Chars | None = None
    for part in parts:
        here = alphabet(part) if isinstance(part, Repeat) and part.most is None else None
        if here is not None and last is not None and overlap(here, last):
            run += 1
        elif here is not None:
            run = 1
        elif last is not None and overlap(alphabet(part), last):
            continue  # the part between them may belong to the repetition
        else:
            run = 0
        last, longest = here or None, max(longest, run)
    return longest
