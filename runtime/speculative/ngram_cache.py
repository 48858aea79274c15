"""What generations have written lately, found by the tokens before it: a second source of drafts.

Branches of one program write alike: the same phrases, steps, formats. Where a branch's own text has
nothing to go by, another's often has.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

ORDER = 3  # tokens that must have come before
MAX_NGRAMS = 8192  # that are remembered, 2 MB of them; the oldest are forgotten
_Key = tuple[Hashable, tuple[int, ...]]
_NOTHING: tuple[list[int], int] = ([], 0)


class NgramCache:
    """Texts by their n-grams, the latest of each. Namespaces see nothing of one another."""

    def __init__(self) -> None:
        self._places: dict[_Key, tuple[list[int], int]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def put(self, namespace: Hashable, before: tuple[int, ...], text: list[int], at: int) -> None:
        """Remember that text[at:], which may still grow, followed the tokens before."""
        if len(self._places) == MAX_NGRAMS:
            del self._places[next(iter(self._places))]
        self._places[namespace, before] = (text, at)

    def get(self, namespace: Hashable, before: tuple[int, ...], count: int) -> list[int]:
        """Up to `count` tokens that followed these."""
        text, at = self._places.get((namespace, before), _NOTHING)
        return text[at : at + count]

    def clear(self) -> None:
        """Forget all."""
        self._places.clear()


class Writing:
    """The text of one generation in the cache, and what others wrote after the same tokens."""

    __slots__ = ("_cache", "_first", "_namespace", "_text")

    def __init__(self, cache: NgramCache, namespace: Hashable) -> None:
        self._cache = cache
        self._namespace = namespace
        self._text: list[int] = []
        self._first: int | None = None  # position of the first token of the text

    def extend(self, tokens: NDArray[np.int32]) -> None:
        """Take in what is new in the tokens [n] of a branch; at first, nothing is."""
        if self._first is None:
            self._first = max(len(tokens), ORDER)
        new = self._first + len(self._text)
        if new >= len(tokens):
            return
        recent: list[int] = tokens[new - ORDER :].tolist()
        for at, token in enumerate(recent[ORDER:]):
            before = tuple(recent[at : at + ORDER])
            self._cache.put(self._namespace, before, self._text, len(self._text))
            self._text.append(token)

    def guess(self, tokens: NDArray[np.int32], count: int) -> NDArray[np.int32]:
        """Up to `count` tokens that followed the last of tokens [n] somewhere."""
        before = tuple(tokens[-ORDER:].tolist())
        return np.array(self._cache.get(self._namespace, before, count), np.int32)
