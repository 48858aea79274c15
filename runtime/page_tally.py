"""Counts by page of who owns its slots, and so how many pages eviction could free."""

from __future__ import annotations

import numpy as np

from radixlang.runtime.slot_runs import Run, Slots, runs_of


class PageTally:
    """Owned slots and idle (cached, unleased) slots of every page, with a running total.

    A page is level when all of its owned slots are idle, be there any or none: level pages are
    those that are free or could be evicted. With pages of one slot only the total is kept.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._page_size = page_size
        self.num_level_pages = num_pages
        num_counted = num_pages if page_size > 1 else 0
        self._owned = np.zeros(num_counted, np.int32)
        self._idle = np.zeros(num_counted, np.int32)

    def mark_idle(self, slots: Slots, sign: int) -> None:
        """Distinct owned slots, in any order, become idle (+1) or cease to be (-1)."""
        if self._page_size == 1:
            self.num_level_pages += sign * len(slots)
        else:
            for run in runs_of(slots):
                self._add(self._idle, run, sign)

    def take(self, run: Run) -> None:
        """The slots of the run are owned from now on."""
        if self._page_size == 1:
            self.num_level_pages -= run[1] - run[0]
        else:
            self._add(self._owned, run, 1)

    def give(self, run: Run) -> Run:
        """The slots of the run are free from now on; returns the run of pages left free."""
        if self._page_size == 1:
            self.num_level_pages += run[1] - run[0]
            return run
        self._add(self._owned, run, -1)
        first, last = run[0] // self._page_size, (run[1] - 1) // self._page_size
        if self._owned[first]:
            first += 1
        if last >= first and self._owned[last]:
            last -= 1
        return first, last + 1

    def _add(self, counts: Slots, run: Run, sign: int) -> None:
        """Add the run's slots, with a sign, to a count of its pages, and recount the level ones."""
        start, stop = run
        first, last = start // self._page_size, (stop - 1) // self._page_size
        pages = slice(first, last + 1)
        before = np.count_nonzero(self._owned[pages] == self._idle[pages])
        counts[pages] += sign * self._page_size
        counts[first] -= sign * (start - first * self._page_size)
        counts[last] -= sign * ((last + 1) * self._page_size - stop)
        after = np.count_nonzero(self._owned[pages] == self._idle[pages])
        self.num_level_pages += int(after - before)
