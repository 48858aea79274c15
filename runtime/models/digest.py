"""A short name for all that something kept on disk was made from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def digest(texts: Iterable[str]) -> str:
    """20 hexadecimal digits that differ where a text does."""
    state = hashlib.blake2b(digest_size=10)
    for text in texts:
        state.update(f"{len(text)} {text}".encode())
    return state.hexdigest()
