"""Counts by page of who owns its slots: how many pages could be evicted, how many are leased."""

from __future__ import annotations

import numpy as np

from radixlang.runtime.slot_runs import Run, Slots, runs_of


class PageTally:
    """Owned, idle cached and leased cached slots of every page, with running totals.

    A page is level when all of its owned slots are cached without a lease, be there any or none:
    level pages are those that are free or could be evicted. A page is protected when one of its
    slots is cached under a lease. With pages of one slot only the totals are kept.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._page_size = page_size
        self.num_level_pages = num_pages
        self.num_protected_pages = 0
        num_counted = num_pages if page_size > 1 else 0
        self._owned = np.zeros(num_counted, np.int32)
        self._idle = np.zeros(num_counted, np.int32)
        self._leased = np.zeros(num_counted, np.int32)

    def shift(self, slots: Slots, *, idle: int = 0, leased: int = 0) -> None:
        """Change the counts of cached slots, distinct and in any order."""
        if self._page_size == 1:
            self.num_level_pages += idle * len(slots)
            self.num_protected_pages += leased * len(slots)
            return
        for run in runs_of(slots):
            if idle:
                self._add_unlevel(self._idle, run, idle)
            if leased:
                self._add_leased(run, leased)

    def take(self, run: Run) -> None:
        """The slots of the run are owned from now on."""
        if self._page_size == 1:
            self.num_level_pages -= run[1] - run[0]
        else:
            self._add_unlevel(self._owned, run, 1)

    def give(self, run: Run) -> Run:
        """The slots of the run are free from now on; returns the run of pages left free."""
        if self._page_size == 1:
            self.num_level_pages += run[1] - run[0]
            return run
        self._add_unlevel(self._owned, run, -1)
        first, last = run[0] // self._page_size, (run[1] - 1) // self._page_size
        if self._owned[first]:
            first += 1
        if last >= first and self._owned[last]:
            last -= 1
        return first, last + 1

    def _add_unlevel(self, counts: Slots, run: Run, sign: int) -> None:
        """Change owned or idle counts, and with them which pages are level."""
        pages = slice(run[0] // self._page_size, (run[1] - 1) // self._page_size + 1)
        before = np.count_nonzero(self._owned[pages] == self._idle[pages])
        self._add(counts, run, sign)
        after = np.count_nonzero(self._owned[pages] == self._idle[pages])
        self.num_level_pages += int(after - before)

    def _add_leased(self, run: Run, sign: int) -> None:
        pages = slice(run[0] // self._page_size, (run[1] - 1) // self._page_size + 1)
        before = np.count_nonzero(self._leased[pages])
        self._add(self._leased, run, sign)
        self.num_protected_pages += int(np.count_nonzero(self._leased[pages]) - before)

    def _add(self, counts: Slots, run: Run, sign: int) -> None:
        """Add the run's slots, with a sign, to the counts of its pages."""
        start, stop = run
        first, last = start // self._page_size, (stop - 1) // self._page_size
        counts[first : last + 1] += sign * self._page_size
        counts[first] -= sign * (start - first * self._page_size)
        counts[last] -= sign * ((last + 1) * self._page_size - stop)
