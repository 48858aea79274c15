"""Patterns of JSON Schema (ECMA 262), translated for the mask engine."""

from __future__ import annotations

from functools import lru_cache

from radixlang.errors import UnsupportedConstraintError
from radixlang.runtime.constraints.regex.assertion_tree import tree_of
from radixlang.runtime.constraints.regex.ecma_regex import read_ecma
from radixlang.runtime.constraints.regex.pattern import (
    NOTHING,
    Alt,
    Cat,
    Chars,
    LiteralText,
    Pattern,
    Repeat,
    cat,
    chars,
    conjuncts,
    is_plain,
    to_regex,
)
from radixlang.runtime.constraints.regex.plain_regex import plain_pattern
from radixlang.runtime.constraints.regex.regex_translation import translate_items

MAX_REGEX_CHARS = 500_000


@lru_cache(maxsize=256)
def string_pattern(source: str) -> Pattern:
    """The strings in which a pattern matches somewhere.

    Raises:
        InvalidConstraintError: it is not a regex of ECMA 262.
        UnsupportedConstraintError: it has a construct that is not supported, which is named.
    """
    return translate_items(read_ecma(source), source).pattern


@lru_cache(maxsize=256)
def engine_regexes(source: str) -> tuple[str, ...]:
    """Regexes of the engine, all of which a whole string must match: mostly one, several for a
    pattern that begins with lookaheads.

    Raises:
        InvalidConstraintError, UnsupportedConstraintError: as `string_pattern`.
    """
    parts = conjuncts(string_pattern(source))
    return tuple(map(written, parts)) if all(map(is_plain, parts)) else (engine_regex(source),)


@lru_cache(maxsize=256)
def engine_regex(source: str, *, complement: bool = False) -> str:
    """One regex of the engine for the whole strings of a pattern, or for all others.

    Raises:
        InvalidConstraintError, UnsupportedConstraintError: as `string_pattern`.
    """
    pattern = string_pattern(source)
    if complement or not is_plain(pattern):
        tree = tree_of(read_ecma(source), source)
        pattern = plain_pattern(tree, complement=complement)
    return written(pattern)


def written(pattern: Pattern) -> str:
    """A plain pattern of whole strings as a regex of the engine.

    Raises:
        UnsupportedConstraintError: it is too long.
    """
    regex = f"^{to_regex(_without_nul(pattern))}$"
    if len(regex) > MAX_REGEX_CHARS:
        raise UnsupportedConstraintError(
            f"the regex has {len(regex):,} characters when it is written for masks; at most "
            f"{MAX_REGEX_CHARS:,} are taken"
        )
    return regex


def _without_nul(pattern: Pattern) -> Pattern:
    """The pattern without U+0000 in sets that lack a quotation mark or a backslash.

    If such a set has all control characters, the engine takes `\\"` and `\\\\` for members of it.
    """
    match pattern:
        case LiteralText(value):
            return NOTHING if "\0" in value else pattern
        case Chars(ranges):
            holds = {
                code for code in _NUL_AND_ESCAPED for low, high in ranges if low <= code <= high
            }
            if 0 not in holds or len(holds) == len(_NUL_AND_ESCAPED):
                return pattern
            return chars((max(low, 1), high) for low, high in ranges if high > 0)
        case Cat(parts):
            return cat(*map(_without_nul, parts))
        case Alt(options):
            return Alt(tuple(map(_without_nul, options)))
        case Repeat(body, least, most):
            return Repeat(_without_nul(body), least, most)
    raise AssertionError(pattern)  # a plain pattern has no other parts


_NUL_AND_ESCAPED = (0x00, 0x22, 0x5C)
