"""Terminals after which a single continuation may be forced for ever.

After every character of `"a"+` another one is possible. If nothing else can follow (but a second
`"a"+`, say), the mask engine would extend forced text without end, so with such a terminal it is
not asked for forced text.
"""

from __future__ import annotations

from radixlang.runtime.constraints.regex.character_sets import (
    NO_CHARS,
    first_characters,
    last_characters,
    num_left,
    united,
)
from radixlang.runtime.constraints.regex.pattern import (
    ANY_CHAR,
    ANY_TEXT,
    Alt,
    And,
    Cat,
    Chars,
    LiteralText,
    Not,
    Pattern,
    Repeat,
    cat,
    chars,
    is_nullable,
    repeat,
)

MAX_FORCED = 2048  # repetitions from which a repetition counts as endless


def may_force(pattern: Pattern, banned: Chars | None = NO_CHARS, after: Chars = NO_CHARS) -> bool:
    """Whether a text may grow without end and without a choice. True if that is not known.

    Args:
        pattern: the pattern of the text.
        banned: characters that something outside the pattern may exclude; None for any.
        after: characters that may follow it inside the same terminal.
    """
    match pattern:
        case LiteralText() | Chars() | Not():
            return False
        case Cat(parts):
            return any(
                may_force(part, banned, first_characters(cat(*parts[index:], after)))
                for index, part in enumerate(parts, 1)
            )
        case Alt(options):
            return any(may_force(option, banned, after) for option in options)
        case Repeat(body, _, most):
            again = united(after, first_characters(body))
            assert again is not None
            is_long = most is None or most > MAX_FORCED
            leaves = banned is not None and num_left(again, banned) > 1
            is_stuck = is_long and not (leaves or _chooses_each_time(body, banned))
            return is_stuck or may_force(body, banned, again)
        case And(left, Not(body)):
            lazy = _is_lazy(left, body)
            return may_force(left, banned if lazy else united(banned, _ruled_out(body)), after)
        case And(left, right):
            return not (_is_finite(left) or _is_finite(right))


def _chooses_each_time(body: Pattern, banned: Chars | None) -> bool:
    """Whether every repetition of a pattern passes a place with a choice of two characters."""
    if _chooses(body, banned):
        return True
    parts = body.parts if isinstance(body, Cat) else (body,)
    return banned is not None and _skips((*parts, first_characters(body)), banned)


def _chooses(pattern: Pattern, banned: Chars | None) -> bool:
    """Whether every text of a pattern passes a place with a choice of two characters."""
    match pattern:
        case _ if banned is None:
            return False
        case Chars():
            return num_left(pattern, banned) > 1
        case Cat(parts):
            return any(_chooses(part, banned) for part in parts) or _skips(parts, banned)
        case Alt(options):
            if all(_chooses(option, banned) for option in options):
                return True
            return not any(map(is_nullable, options)) and _num_first(options, banned) > 1
        case Repeat(body, least, _):
            return least > 0 and _chooses(body, banned)
        case And(left, Not(body)):
            return _chooses(left, united(banned, _ruled_out(body)))
    return False


def _skips(parts: tuple[Pattern, ...], banned: Chars) -> bool:
    """Whether an optional part begins with other characters than the part after it."""
    return any(
        is_nullable(part) and _num_first((part, cat(*parts[index:])), banned) > 1
        for index, part in enumerate(parts[:-1], 1)
    )


def _num_first(options: tuple[Pattern, ...], banned: Chars) -> int:
    """Number of characters with which the options can begin."""
    first = chars(r for option in options for r in first_characters(option).ranges)
    return num_left(first, banned)


def _ruled_out(body: Pattern) -> Chars | None:
    """Characters that a complement may exclude far from the beginning of a text.

    The complement of X.* excludes a character only if it completes an X, the complement of a
    finite set only near the beginning. None for other complements.
    """
    if isinstance(body, Alt):
        found: Chars | None = NO_CHARS
        for option in body.options:
            found = united(found, _ruled_out(option))
        return found
    if _is_finite(body):
        return NO_CHARS
    if isinstance(body, Cat) and body.parts[0] == ANY_TEXT and all(map(_is_finite, body.parts[1:])):
        return NO_CHARS  # it excludes an ending, but no continuation
    if isinstance(body, Cat) and body.parts[-1] == ANY_TEXT:
        return (
            NO_CHARS
            if all(map(_is_finite, body.parts[:-1]))
            else last_characters(cat(*body.parts[:-1]))
        )
    return None


def _is_lazy(left: Pattern, body: Pattern) -> bool:
    """Whether the complement is that of prefix_free: no choice that leads to an end is lost."""
    rest = repeat(ANY_CHAR, 1, None)
    parts = left.parts if isinstance(left, Cat) else (left,)
    return isinstance(body, Cat) and body.parts == (*parts, rest)


def _is_finite(pattern: Pattern) -> bool:
    match pattern:
        case LiteralText() | Chars():
            return True
        case Cat(parts) | Alt(parts):
            return all(map(_is_finite, parts))
        case Repeat(body, _, most):
            return most is not None and most <= MAX_FORCED and _is_finite(body)
        case And(left, right):
            return _is_finite(left) or _is_finite(right)
        case Not():
            return False
