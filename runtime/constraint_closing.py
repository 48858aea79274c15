"""finish="close": the short valid ending of a truncated text, found without the model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from radixlang.errors import ConstraintError, IncompleteError
from radixlang.runtime.constraint_lowering import regular_pattern
from radixlang.runtime.grammar.pattern import (
    ANY_CHAR,
    Pattern,
    Text,
    both,
    cat,
    repeat,
    to_terminal,
)
from radixlang.runtime.matching import consume_longest
from radixlang.runtime.time_bound import within

if TYPE_CHECKING:
    from radixlang.runtime.constraints import Matcher

MAX_CLOSING_BYTES = 1024
MAX_CLOSING_S = 1.0  # it may run on the engine's own thread
MAX_NOVEL_STEPS = 400
_STEPS_A_BYTE = 3  # of search for each byte that an ending may have

# What ends a value sooner stands first; letters and digits are the smallest values; blanks last.
_PREFERENCE = (
    b'"}])>;,' + b"!#$%&'*+/=?@_|~" + b"0123456789" + b"abcdefghijklmnopqrstuvwxyz" + b"{[(<.:-"
)
_RANK = {byte: rank for rank, byte in enumerate(_PREFERENCE)}
_RANK_IN_STRING = {byte: rank for rank, byte in enumerate(b'"abcdefghijklmnopqrstuvwxyz01')}
_BLANKS = b" \t\r\n"
_UNRANKED = 100
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def close_text(matcher: Matcher, text: str | bytes) -> str:
    """Text that completes a truncated text.

    Args:
        matcher: a byte-level matcher at the beginning.
        text: the truncated text; as bytes it may end inside a character.

    Raises:
        IncompleteError: none was found within the bound on the search, or the text is no
            valid beginning.
    """
    data = text if isinstance(text, bytes) else text.encode()
    partial = data.decode("utf-8", "ignore")
    if consume_longest(matcher, data) < len(data):
        raise IncompleteError("the text to close is not a valid beginning", partial)
    try:
        closing = within(MAX_CLOSING_S, lambda: _closing(matcher, data))
    except TimeoutError:
        closing = None
    if closing is None:
        raise IncompleteError(
            f"no valid ending within {MAX_CLOSING_BYTES} bytes was found; allow more max_tokens",
            partial,
        )
    return (data + closing).decode()[len(partial) :]


def _closing(matcher: Matcher, data: bytes) -> bytes | None:
    """The shortest ending within limits of which each is twice the one before.

    For a regular constraint it is exact: the engine leads into nothing that has no end within
    the limit. For any other it is a search that may miss one.
    """
    if matcher.is_complete:
        return b""
    pattern = regular_pattern(matcher.compiled.spec)
    if pattern is not None:
        return _shortest(lambda limit: _lead(matcher, pattern, data, limit), exact=True)
    novel = _Novel()
    return _shortest(lambda limit: _search(matcher.fork(), limit, _choices), exact=False) or (
        _shortest(lambda limit: _search(matcher.fork(), limit, novel), exact=False)
    )


def _shortest(attempt: Callable[[int], bytes | None], *, exact: bool) -> bytes | None:
    """The first success of doubling limits; where a failure is certain, the least limit."""
    limit = 1 if exact else 8
    closing = attempt(limit)
    while closing is None:
        limit *= 2
        if limit > MAX_CLOSING_BYTES:
            return None
        closing = attempt(limit)
    low = limit // 2  # too little
    while exact and limit - low > 1:
        middle = (low + limit) // 2
        found = attempt(middle)
        low, limit = (middle, limit) if found is None else (low, middle)
        closing = found or closing
    return closing


def _lead(matcher: Matcher, pattern: Pattern, data: bytes, limit: int) -> bytes | None:
    """An ending of at most `limit` characters, by masks of what has one; None where none has."""
    begun = Text(data.decode("utf-8", "ignore"))
    bounded = both(pattern, cat(begun, repeat(ANY_CHAR, 0, limit)))
    grammar = {"lark_grammar": f"start: TEXT\nTEXT: {to_terminal(bounded)}\n"}
    engine = matcher.compiled.vocabulary.matcher(json.dumps({"grammars": [grammar]}))
    if engine.is_error() or engine.try_consume_tokens(list(data)) < len(data):
        return None
    closing = bytearray()
    while not engine.is_accepting():
        bits = np.unpackbits(np.frombuffer(engine.compute_bitmask(), np.uint8), bitorder="little")
        choices = np.flatnonzero(bits[:256]).tolist()
        if engine.is_error() or not choices:
            return None
        closing.append(min(choices, key=lambda byte: _preference(byte, _RANK)))
        engine.try_consume_tokens([closing[-1]])
    return bytes(closing)


def _search(matcher: Matcher, limit: int, choices: Callable[[Matcher], list[int]]) -> bytes | None:
    """Depth first in the order of `choices`, with backtracking, within the limit."""
    path: list[list[int]] = []  # choices not tried yet, by depth
    closing: list[int] = []
    for _ in range(_STEPS_A_BYTE * limit + 100):
        if matcher.is_complete:
            return bytes(closing)
        path.append(choices(matcher) if len(closing) < limit else [])
        while path and not path[-1]:
            path.pop()
            if not path:
                return None
            closing.pop()
            matcher.rollback(1)
        byte = path[-1].pop(0)
        matcher.consume([byte])
        closing.append(byte)
    return None


def _choices(matcher: Matcher) -> list[int]:
    forced = matcher.forced_tokens()
    if forced:
        return forced[:1]
    try:
        row = matcher.allowed_row()
    except ConstraintError:
        return []
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:256]
    ranks = _RANK_IN_STRING if _is_in_string(matcher.text_bytes()) else _RANK
    return sorted(np.flatnonzero(bits).tolist(), key=lambda byte: _preference(byte, ranks))


class _Novel:
    """The order of choices that leads on first where the ways on were met the fewest times.

    A run of letters can go on for ever while one of them would have ended it.
    """

    def __init__(self) -> None:
        self._num_met: Counter[bytes] = Counter()
        self._num_steps = 0

    def __call__(self, matcher: Matcher) -> list[int]:
        self._num_steps += 1
        if self._num_steps > MAX_NOVEL_STEPS:
            return []
        found = []
        for rank, byte in enumerate(_choices(matcher)):
            matcher.consume([byte])
            row = b"" if matcher.is_complete else _row(matcher)
            matcher.rollback(1)
            if row is not None:
                times = self._num_met[row] + 2 * (byte in _BLANKS)
                found.append((times, rank, byte, row))
        found.sort()
        self._num_met.update(row for *_, row in found[:1])
        return [byte for *_, byte, _ in found]


def _row(matcher: Matcher) -> bytes | None:
    try:
        return matcher.allowed_row().tobytes()
    except ConstraintError:
        return None


def _preference(byte: int, ranks: dict[int, int]) -> tuple[bool, int, int]:
    return byte in _BLANKS, ranks.get(byte, _UNRANKED), byte


def _is_in_string(data: bytes) -> bool:
    """Whether a double quote is open: a guess that only orders the search."""
    return len(_QUOTED.sub(b"", data).split(b'"')) % 2 == 0
