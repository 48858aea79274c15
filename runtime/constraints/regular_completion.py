"""The shortest ending of a text under a pattern; exact, as the engine allows no dead end."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from radixlang.runtime.constraints.regex.pattern import (
    ANY_CHAR,
    LiteralText,
    Pattern,
    both,
    cat,
    repeat,
    to_terminal,
)
from radixlang.runtime.constraints.vocabulary import Vocabulary

MAX_CLOSING_BYTES = 1024


def shortest_ending(
    vocabulary: Vocabulary,
    pattern: Pattern,
    data: bytes,
    order: Callable[[int], tuple[bool, int, int]],
    char: Pattern = ANY_CHAR,
) -> bytes | None:
    """The shortest bytes that complete a text; None if there are none within the limit.

    Args:
        vocabulary: a vocabulary of single bytes.
        pattern: the pattern of the whole text.
        data: the text so far, which may end inside a character.
        order: the preference among allowed bytes.
        char: the characters that the ending may have.
    """

    def attempt(limit: int) -> bytes | None:
        begun = LiteralText(data.decode("utf-8", "ignore"))
        bounded = both(pattern, cat(begun, repeat(char, 0, limit)))
        return _lead(vocabulary, bounded, data, order)

    return least(attempt)


def least(attempt: Callable[[int], bytes | None]) -> bytes | None:
    """The result of the least limit with one."""
    limit, closing = 0, attempt(0)
    while closing is None and limit < MAX_CLOSING_BYTES:
        limit = max(1, 2 * limit)
        closing = attempt(limit)
    low = limit // 2  # too little
    while closing is not None and limit - low > 1:
        middle = (low + limit) // 2
        found = attempt(middle)
        low, limit = (middle, limit) if found is None else (low, middle)
        closing = found or closing
    return closing


def _lead(
    vocabulary: Vocabulary, pattern: Pattern, data: bytes,
    order: Callable[[int], tuple[bool, int, int]],
) -> bytes | None:  # fmt: skip
    """The bytes that the masks of a pattern allow after a text, up to its first end."""
    grammar = {"lark_grammar": f"start: TEXT\nTEXT: {to_terminal(pattern)}\n"}
    engine = vocabulary.matcher(json.dumps({"grammars": [grammar]}))
    if engine.is_error() or engine.try_consume_tokens(list(data)) < len(data):
        return None
    closing = bytearray()
    while not engine.is_accepting():
        bits = np.unpackbits(np.frombuffer(engine.compute_bitmask(), np.uint8), bitorder="little")
        choices = np.flatnonzero(bits[:256]).tolist()
        if engine.is_error() or not choices:
            return None
        closing.append(min(choices, key=order))
        engine.try_consume_tokens([closing[-1]])
    return bytes(closing)
