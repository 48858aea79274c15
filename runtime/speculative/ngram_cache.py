"""A cache of recently generated n-grams by the tokens before them: a second source of drafts.

Branches of one program write similar text: the same phrases, steps, formats. If a branch's own text
has no match, another's often has.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

ORDER = 3  # tokens that must match
MAX_NGRAMS = 8192  # cached n-grams, 2 MB; the oldest are dropped
_Key = tuple[Hashable, tuple[int, ...]]
_NOTHING: tuple[list[int], int] = ([], 0)


class NgramCache:
    """The latest text after each n-gram. Namespaces share nothing."""

    def __init__(self) -> None:
        self._places: dict[_Key, tuple[list[int], int]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def put(self, namespace: Hashable, before: tuple[int, ...], text: list[int], at: int) -> None:
        """Store that text[at:], which may still grow, followed the tokens `before`."""
        if len(self._places) == MAX_NGRAMS:
            del self._places[next(iter(self._places))]
        self._places[namespace, before] = (text, at)

    def get(self, namespace: Hashable, before: tuple[int, ...], count: int) -> list[int]:
        """Up to `count` tokens that followed these."""
        text, at = self._places.get((namespace, before), _NOTHING)
        return text[at : at + count]

    def clear(self) -> None:
        """Drop all n-grams."""
        self._places.clear()


class NgramText:
    """The text of one generation in the cache, and lookups of others' text."""

    __slots__ = ("_cache", "_first", "_namespace", "_text")

    def __init__(self, cache: NgramCache, namespace: Hashable) -> None:
        self._cache = cache
        self._namespace = namespace
        self._text: list[int] = []
        self._first: int | None = None  # position of the first token of the text

    def extend(self, tokens: NDArray[np.int32]) -> None:
        """Store the new tokens of a branch's tokens [n]; the first call only notes the prompt."""
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
        """Up to `count` tokens that followed the last ones of tokens [n] in another text."""
        before = tuple(tokens[-ORDER:].tolist())
        return np.array(self._cache.get(self._namespace, before, count), np.int32)
