"""Counts by page of who owns its slots: how many pages could be evicted, how many are leased."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PageRuns = list[tuple[int, int]]


class PageTally:
    """Owned, idle cached and leased cached slots of every page, with running totals.

    A page is evictable when all of its owned slots are cached without a lease, and protected
    when one of them is cached under a lease. With pages of one slot only the totals are kept.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._page_size = page_size
        self.num_evictable_pages = 0
        self.num_protected_pages = 0
        num_counted = num_pages if page_size > 1 else 0
        self._owned = np.zeros(num_counted, np.int32)
        self._idle = np.zeros(num_counted, np.int32)
        self._leased = np.zeros(num_counted, np.int32)

    def shift(self, slots: NDArray[np.int32], *, idle: int = 0, leased: int = 0) -> None:
        """Change the counts of cached slots, distinct and in any order."""
        if self._page_size == 1:
            self.num_evictable_pages += idle * len(slots)
            self.num_protected_pages += leased * len(slots)
        elif len(slots):
            pages, times = np.unique(slots // self._page_size, return_counts=True)
            self._add(pages, times.astype(np.int32), 0, idle, leased)

    def shift_run(self, start: int, stop: int, *, owned: int) -> PageRuns:
        """Change the owned count of slots [start, stop); returns the runs of pages left free."""
        if self._page_size == 1:
            return [(start, stop)] if owned < 0 else []
        size = self._page_size
        first, last = start // size, (stop - 1) // size
        times = np.full(last - first + 1, size, np.int32)
        times[0] -= start - first * size
        times[-1] -= (last + 1) * size - stop
        pages = slice(first, last + 1)
        self._add(pages, times, owned, 0, 0)
        if owned > 0:
            return []
        free = self._owned[pages] == 0
        edges = np.flatnonzero(np.diff(np.concatenate(([False], free, [False])).astype(np.int8)))
        bounds = (edges + first).tolist()
        return list(zip(bounds[::2], bounds[1::2], strict=True))

    def _add(
        self,
        pages: slice | NDArray[np.int32],
        times: NDArray[np.int32],
        owned: int,
        idle: int,
        leased: int,
    ) -> None:
        evictable, protected = self._count(pages)
        self._owned[pages] += owned * times
        self._idle[pages] += idle * times
        self._leased[pages] += leased * times
        now_evictable, now_protected = self._count(pages)
        self.num_evictable_pages += now_evictable - evictable
        self.num_protected_pages += now_protected - protected

    def _count(self, pages: slice | NDArray[np.int32]) -> tuple[int, int]:
        owned, idle = self._owned[pages], self._idle[pages]
        evictable = int(np.count_nonzero((idle == owned) & (owned > 0)))
        return evictable, int(np.count_nonzero(self._leased[pages]))
