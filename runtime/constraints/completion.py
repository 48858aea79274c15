"""finish="close": the short valid ending of a truncated text, found without the model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from radixlang.errors import ConstraintError, IncompleteError
from radixlang.runtime.constraints.explain import consume_longest
from radixlang.runtime.constraints.lowering import regular_pattern
from radixlang.runtime.constraints.matcher import Matcher
from radixlang.runtime.constraints.regex.pattern import Pattern, chars, negate
from radixlang.runtime.constraints.regular_completion import MAX_CLOSING_BYTES, shortest_ending
from radixlang.runtime.constraints.schema.strings import string_patterns
from radixlang.runtime.constraints.time_limit import within
from radixlang.runtime.constraints.vocabulary import Vocabulary

Choose: TypeAlias = Callable[[Matcher], list[bytes]]
MAX_CLOSING_S = 1.0
MAX_SIMPLE_BYTES = 64
MAX_NOVEL_STEPS = 400
_STEPS_A_BYTE = 3  # steps of search for each byte that an ending may have

# Bytes that end a value come first, then letters and digits as smallest values, blanks last.
_PREFERENCE = (
    b'"}])>;,' + b"!#$%&'*+/=?@_|~" + b"0123456789" + b"abcdefghijklmnopqrstuvwxyz" + b"{[(<.:-"
)
_RANK = {byte: rank for rank, byte in enumerate(_PREFERENCE)}
_LETTERS = b"abcdefghijklmnopqrstuvwxyz01"
_RANK_IN_STRING = {byte: rank for rank, byte in enumerate(b'"' + _LETTERS)}
_RANK_OF_LETTER = {byte: rank for rank, byte in enumerate(_LETTERS)}
_PLAIN_CHAR = negate(chars([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x9F)]))  # no escape
_BLANKS = b" \t\r\n"
_UNRANKED = 100
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def close_text(matcher: Matcher, text: str | bytes) -> str:
    """Text that completes a truncated text.

    Args:
        matcher: a byte-level matcher at the beginning.
        text: the truncated text; as bytes it may end inside a character.

    Raises:
        IncompleteError: none was found within the bound on the search, or the text is not a
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
    """The shortest ending found, with limits that double.

    For a regular constraint it is exact. For any other the search may miss one; only strings with
    a pattern are completed exactly.
    """
    if matcher.is_complete:
        return b""
    pattern, vocabulary = regular_pattern(matcher.source.spec), matcher.source.vocabulary
    if pattern is not None:
        return shortest_ending(vocabulary, pattern, data, _preference)
    ways: list[tuple[Choose, int]] = [(_choices, MAX_SIMPLE_BYTES)]
    if patterns := string_patterns(matcher.source.spec):
        ways.append((_Completing(patterns), MAX_CLOSING_BYTES))
    ways += [(_choices, MAX_CLOSING_BYTES), (_Novel(), MAX_CLOSING_BYTES)]
    found = (_within_limits(matcher, choose, most) for choose, most in ways)
    return next((closing for closing in found if closing is not None), None)


def _within_limits(matcher: Matcher, choose: Choose, most: int) -> bytes | None:
    limit = 8
    while limit <= most:
        closing = _search(matcher.fork(), limit, choose)
        if closing is not None:
            return closing
        limit *= 2
    return None


def _search(matcher: Matcher, limit: int, choose: Choose) -> bytes | None:
    """Depth first in the order of `choose`, with backtracking, within the limit."""
    path: list[list[bytes]] = []  # choices not tried yet, by depth
    taken: list[bytes] = []
    for _ in range(_STEPS_A_BYTE * limit + 100):
        if matcher.is_complete:
            return b"".join(taken)
        path.append(choose(matcher) if sum(map(len, taken)) < limit else [])
        while path and not path[-1]:
            path.pop()
            if not path:
                return None
            matcher.rollback(len(taken.pop()))
        taken.append(path[-1].pop(0))
        matcher.consume(taken[-1])
    return None


def _choices(matcher: Matcher) -> list[bytes]:
    forced = matcher.forced_tokens()
    if forced:
        return [bytes(forced[:1])]
    try:
        row = matcher.allowed_row()
    except ConstraintError:
        return []
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:256]
    ranks = _RANK_IN_STRING if _is_in_string(matcher.text_bytes()) else _RANK
    order = sorted(np.flatnonzero(bits).tolist(), key=lambda byte: _preference(byte, ranks))
    return [bytes([byte]) for byte in order]


class _Completing:
    """The order of choices that completes a string under a pattern of the schema if possible.

    The matcher decides which pattern applies to a string: it refuses the endings of others.
    """

    def __init__(self, patterns: list[Pattern]) -> None:
        self._patterns = patterns
        self._known: dict[bytes, list[bytes]] = {}

    def __call__(self, matcher: Matcher) -> list[bytes]:
        plain = _choices(matcher)
        begun = _open_string(matcher.text_bytes())
        if begun is None or b'"' in plain:
            return plain
        if begun not in self._known:
            self._known[begun] = self._endings(begun, matcher.source.vocabulary)
        whole = [e for e in self._known[begun] if matcher.num_valid(e) == len(e)]
        return [*whole, *plain]

    def _endings(self, begun: bytes, vocabulary: Vocabulary) -> list[bytes]:
        found = (
            shortest_ending(vocabulary, pattern, begun, _letters_first, _PLAIN_CHAR)
            for pattern in self._patterns
        )
        return sorted({ending + b'"' for ending in found if ending is not None}, key=len)


class _Novel:
    """Least-visited-first order of choices: masks that were seen the fewest times come first.

    Otherwise a run of letters might go on for ever while another letter would have ended it.
    """

    def __init__(self) -> None:
        self._num_met: Counter[bytes] = Counter()
        self._num_steps = 0

    def __call__(self, matcher: Matcher) -> list[bytes]:
        self._num_steps += 1
        if self._num_steps > MAX_NOVEL_STEPS:
            return []
        found = []
        for rank, byte in enumerate(_choices(matcher)):
            matcher.consume(byte)
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


def _preference(byte: int, ranks: dict[int, int] = _RANK) -> tuple[bool, int, int]:
    return byte in _BLANKS, ranks.get(byte, _UNRANKED), byte


def _letters_first(byte: int) -> tuple[bool, int, int]:
    return _preference(byte, _RANK_OF_LETTER)


def _open_string(data: bytes) -> bytes | None:
    """The content so far of a string that is open at the end; None if there is none, or inside an
    escape."""
    if not _is_in_string(data):
        return None
    try:
        held: str = json.loads(_QUOTED.sub(b"", data).rpartition(b'"')[2].join([b'"', b'"']))
    except ValueError:
        return None
    return held.encode("utf-8", "surrogatepass")


def _is_in_string(data: bytes) -> bool:
    """Whether a double quote is open: a guess that only orders the search."""
    return len(_QUOTED.sub(b"", data).split(b'"')) % 2 == 0
