"""Which logits of a step penalties change, as columns (row, token) for all of its rows together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radixlang.runtime.sampling.row import SamplingRow


@dataclass(frozen=True, slots=True)
class Penalties:
    """The logits that penalties change, rows in order, no pair twice.

    Attributes:
        seen: int64 [2, m], (row, token) of earlier tokens, for repetition penalties.
        counted: int64 [2, k], (row, token) of generated tokens.
        charges: float32 [k], what frequency and presence penalties take from those.
        sizes: int64 [2, num_rows], columns of each row in `seen` and in `counted`.
    """

    seen: NDArray[np.int64]
    counted: NDArray[np.int64]
    charges: NDArray[np.float32]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[SamplingRow], vocab_size: int) -> Penalties:
        """Those of all rows; a prompt's ids from `vocab_size` on, of the padding, are left out."""
        seen: list[NDArray[np.int64]] = [_NO_IDS]
        counted: list[NDArray[np.int64]] = [_NO_IDS]
        charges: list[NDArray[np.float32]] = [_NO_VALUES]
        sizes = np.zeros((2, len(rows)), np.int64)
        for place, row in enumerate(rows):
            if not row.has_penalty:
                continue
            params, tokens = row.params, row.seen
            if params.repetition_penalty != 1.0:
                seen.append(tokens.all_ids)
                sizes[0, place] = len(tokens.all_ids)
            if params.frequency_penalty or params.presence_penalty:
                counted.append(tokens.generated_ids)
                charges.append(params.frequency_penalty * tokens.counts + params.presence_penalty)
                sizes[1, place] = len(tokens.generated_ids)
        pairs = [_pairs(ids, size) for ids, size in zip((seen, counted), sizes, strict=True)]
        inside = pairs[0][1] < vocab_size
        if not inside.all():
            pairs[0] = pairs[0][:, inside]
            sizes[0] = np.bincount(pairs[0][0], minlength=len(rows))
        return cls(pairs[0], pairs[1], np.concatenate(charges, dtype=np.float32), sizes)


_NO_IDS = np.empty(0, np.int64)
_NO_VALUES = np.empty(0, np.float32)


def _pairs(ids: list[NDArray[np.int64]], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(row, token) of the rows' ids, one after another."""
    return np.stack((np.repeat(np.arange(len(sizes)), sizes), np.concatenate(ids)))
