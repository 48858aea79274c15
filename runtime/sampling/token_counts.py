"""Which tokens a generation has had, and how often: what penalties are taken for.

A generation counts its tokens as they come, so a step costs what is new and not what there is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """Tokens before one row, each id once.

    Attributes:
        all_ids: int64 [n], of the prompt and of what was generated.
        generated_ids: int64 [m], of what was generated.
        counts: float32 [m], how often each of those was.
    """

    all_ids: NDArray[np.int64]
    generated_ids: NDArray[np.int64]
    counts: NDArray[np.float32]

    @classmethod
    def of(cls, prompt: NDArray[np.integer], generated: NDArray[np.integer]) -> SeenTokens:
        """Counted from the tokens themselves."""
        ids, counts = np.unique(generated.astype(np.int64), return_counts=True)
        both = np.union1d(prompt.astype(np.int64), ids)
        return cls(both, ids, counts.astype(np.float32))


class TokenCounts:
    """Counts the tokens of one generation; `seen` is as of the last `count`.

    Args:
        prompt: its tokens, int32.
    """

    def __init__(self, prompt: NDArray[np.int32]) -> None:
        self.num_prompt = len(prompt)
        self._all = _Ids(np.unique(prompt))
        self._generated = _Ids(np.empty(0, np.int64))
        self._num_counted = 0

    def count(self, generated: NDArray[np.int32]) -> None:
        """Take over the tokens that came since the last call; `generated` are all of them."""
        for token_id in generated[self._num_counted :].tolist():
            self._all.add(token_id)
            self._generated.add(token_id)
        self._num_counted = len(generated)

    @property
    def seen(self) -> SeenTokens:
        """Views that later counting changes: for the step at hand."""
        generated = self._generated
        return SeenTokens(self._all.ids, generated.ids, generated.counts)


class _Ids:
    """Different ids in the order of their first coming, with counts, in arrays that grow."""

    def __init__(self, ids: NDArray[np.integer]) -> None:
        self._place = {token_id: place for place, token_id in enumerate(ids.tolist())}
        size = max(64, 2 * len(ids))
        self._ids = np.zeros(size, np.int64)
        self._counts = np.zeros(size, np.float32)
        self._ids[: len(ids)] = ids

    def add(self, token_id: int) -> None:
        place = self._place.setdefault(token_id, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[place] = token_id
        self._counts[place] += 1

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> NDArray[np.float32]:
        return self._counts[: len(self._place)]
