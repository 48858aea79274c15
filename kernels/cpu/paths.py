"""The paths of a batch as tables of slots by position, for branches with as many new tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import path_of

BLOCK = 64  # positions, as in the native library


@dataclass(slots=True)
class PathGroup:
    """Branches with the same number of new tokens.

    A slot of the int8 planes is told by `quantized`, None where there is none.
    """

    rows: Tensor  # [num_branches, num_queries] flat rows
    positions: Tensor  # [num_branches, num_queries], consecutive
    slots: Tensor  # [num_branches, whole blocks of positions], -1 where a path has no token
    quantized: Tensor | None = None  # the same shape

    def advance(self, new_slots: Tensor) -> None:
        """One token more a branch, of which each has one new token; new_slots [num_branches]."""
        self.positions = self.positions + 1
        at = self.positions[:, :1]
        missing = int(at.max()) + 1 - self.slots.shape[1]
        if missing > 0:
            self.slots = functional.pad(self.slots, (0, BLOCK), value=-1)
            if self.quantized is not None:
                self.quantized = functional.pad(self.quantized, (0, BLOCK))
        self.slots.scatter_(1, at, new_slots[:, None])


def path_groups(batch: TreeBatch) -> list[PathGroup]:
    """The branches of a checked batch by their number of new tokens."""
    counts = batch.branch_num_queries.astype(np.int64)
    first_row = np.cumsum(counts) - counts
    return [
        _group(batch, np.flatnonzero(counts == count), first_row, int(count))
        for count in np.unique(counts)
    ]


def _group(batch: TreeBatch, branches: np.ndarray, first_row: np.ndarray, count: int) -> PathGroup:
    starts = batch.branch_query_start[branches].astype(np.int64)
    size = -(-int(starts.max() + count) // BLOCK) * BLOCK
    slots = np.full((len(branches), size), -1, np.int64)
    quantized = np.zeros((len(branches), size), np.bool_)
    for row, branch in enumerate(branches.tolist()):
        segment = int(batch.branch_segment[branch])
        path, positions = path_of(batch, segment)
        slots[row, positions] = path.numpy()
        quantized[row, positions] = _is_quantized(batch, segment)
    steps = np.arange(count)
    return PathGroup(
        torch.from_numpy(first_row[branches][:, None] + steps),
        torch.from_numpy(starts[:, None] + steps),
        torch.from_numpy(slots),
        torch.from_numpy(quantized) if quantized.any() else None,
    )


def _is_quantized(batch: TreeBatch, segment: int) -> np.ndarray:
    """For every token of a path, whether it is in the int8 planes."""
    found: list[np.ndarray] = []
    while segment >= 0:
        told = batch.segment_quantized is not None and bool(batch.segment_quantized[segment])
        found.append(np.full(len(batch.segment_slots[segment]), told))
        segment = int(batch.segment_parent[segment])
    return np.concatenate(found[::-1])
