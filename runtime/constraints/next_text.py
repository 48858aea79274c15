"""What may follow in a constrained text, in words: for errors and for `match`."""

from __future__ import annotations

import numpy as np

MAX_LISTED = 12


def next_in_words(
    row: np.ndarray, forced: bytes, is_complete: bool, token_bytes: list[bytes]
) -> str:
    """What may come next.

    Args:
        row: the mask, as `Matcher.allowed_row` has it.
        forced: bytes that have to follow, empty if there is a choice.
        is_complete: whether the text may end here.
        token_bytes: the bytes of each token.
    """
    only = forced.decode("utf-8", "ignore")
    if only:
        return repr(only)
    parts = _first_characters(row, token_bytes)
    if is_complete:
        parts.append("the end")
    return " or ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _first_characters(row: np.ndarray, token_bytes: list[bytes]) -> list[str]:
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: len(token_bytes)]
    firsts = {piece[0] for i in np.flatnonzero(bits) if (piece := token_bytes[i])}
    parts = _ranges(sorted(code for code in firsts if code < 0x80))
    if any(code >= 0x80 for code in firsts):
        parts.append("a character beyond ASCII")
    return parts if len(parts) <= MAX_LISTED else [*parts[:MAX_LISTED], "…"]


def _ranges(codes: list[int]) -> list[str]:
    """'a'–'z' for runs of three or more."""
    runs: list[list[int]] = []
    for code in codes:
        if runs and code == runs[-1][1] + 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    parts = []
    for low, high in runs:
        ends = [repr(chr(low)), repr(chr(high))]
        parts.extend([ends[0]] if low == high else ends if high == low + 1 else ["–".join(ends)])
    return parts
