"""Which pages limited rows read, in plain torch: from the mass of each, which is computed first.

Every key is scored; what is left out are the values of pages. The native library bounds the masses
instead, and reads neither.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.cpu.paths import BLOCK, PathGroup
from radixlang.kernels.plan.page_choice import choose_pages
from radixlang.kernels.plan.page_limits import PageLimits, PageTallies

ROUNDING = 1e-9  # of a sum of weights in float64, relative


class PageReading:
    """The limits of a plan's rows, and what they have read."""

    def __init__(self, limits: PageLimits) -> None:
        self._limits = limits
        self._clear()

    def _clear(self) -> None:
        num_rows = len(self._limits.top_pages)
        self._read, self._all = np.zeros((2, num_rows), np.int64)
        self._omitted = np.zeros(num_rows)

    def take_tallies(self) -> PageTallies:
        """What rows have read since the last call."""
        found = PageTallies(self._read, self._all, self._omitted)
        self._clear()
        return found

    def choose(self, group: PathGroup, most: Tensor, total: Tensor, sinks: Tensor | None) -> Tensor:
        """Bool [branches, heads, queries, pages]: the pages that are read.

        `most` and `total` [branches, heads, queries, group, pages] are the maxima and the sums of
        weights of the pages that begin every path of the group.
        """
        num_branches, heads, num_queries, size, _ = most.shape
        chosen = torch.ones(num_branches, heads, num_queries, most.shape[-1], dtype=torch.bool)
        masses = (most + total.log()).numpy()
        logits = None if sinks is None else sinks.double().view(heads, size).numpy()
        for branch in range(num_branches):
            first = int((group.slots[branch] >= 0).int().argmax()) // BLOCK
            for query in range(num_queries):
                row = int(group.rows[branch, query])
                if not self._limits.limited[row]:
                    continue
                own = int(group.positions[branch, query]) // BLOCK
                for head in range(heads):
                    sink = None if logits is None else logits[head]
                    mass = masses[branch, head, query, :, first : own + 1]
                    picked = self._pick(row, mass, sink)
                    chosen[branch, head, query] = False
                    chosen[branch, head, query, first : own + 1] = torch.from_numpy(picked)
        return chosen

    def _pick(
        self, row: int, mass: NDArray[np.float64], sinks: NDArray[np.float64] | None
    ) -> NDArray[np.bool_]:
        limits = self._limits
        picked, omitted = choose_pages(
            mass, np.full(mass.shape, ROUNDING), sinks, int(limits.top_pages[row]),
            float(limits.top_mass[row]),
        )  # fmt: skip
        self._read[row] += picked.sum()
        self._all[row] += len(picked)
        self._omitted[row] = max(self._omitted[row], omitted)
        return picked

    def count_all(self, group: PathGroup, window: int, heads: int) -> None:
        """Count a layer in which every row reads all of its window."""
        for branch, query in np.ndindex(*group.rows.shape):
            row, own = int(group.rows[branch, query]), int(group.positions[branch, query])
            if self._limits.limited[row]:
                begun = int((group.slots[branch] >= 0).int().argmax())
                first = max(begun, own - window + 1) // BLOCK
                self._read[row] += (own // BLOCK - first + 1) * heads
                self._all[row] += (own // BLOCK - first + 1) * heads
