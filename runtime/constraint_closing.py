"""finish="close": the short valid ending of a truncated text, found without the model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from radixlang.errors import ConstraintError, IncompleteError
from radixlang.runtime.matching import consume_longest

if TYPE_CHECKING:
    from radixlang.runtime.constraints import Matcher

MAX_CLOSING_BYTES = 1024
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
    closing = _shortest(matcher)
    if closing is None:
        raise IncompleteError(
            f"no valid ending within {MAX_CLOSING_BYTES} bytes was found; allow more max_tokens",
            partial,
        )
    return (data + closing).decode()[len(data.decode("utf-8", "ignore")) :]


def _shortest(matcher: Matcher) -> bytes | None:
    """An ending within the smallest limit that has one; each limit is twice the one before."""
    limit = 8
    while limit <= MAX_CLOSING_BYTES:
        closing = _search(matcher.fork(), limit)
        if closing is not None:
            return closing
        limit *= 2
    return None


def _search(matcher: Matcher, limit: int) -> bytes | None:
    """Depth first by preference, with backtracking, within the limit."""
    path: list[list[int]] = []  # choices not tried yet, by depth
    closing: list[int] = []
    for _ in range(_STEPS_A_BYTE * limit + 100):
        if matcher.is_complete:
            return bytes(closing)
        path.append(_choices(matcher) if len(closing) < limit else [])
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


def _preference(byte: int, ranks: dict[int, int]) -> tuple[bool, int, int]:
    return byte in _BLANKS, ranks.get(byte, _UNRANKED), byte


def _is_in_string(data: bytes) -> bool:
    """Whether a double quote is open: a guess that only orders the search."""
    return len(_QUOTED.sub(b"", data).split(b'"')) % 2 == 0
