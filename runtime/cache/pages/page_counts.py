"""How many pages could be evicted or are free: all of their owned slots are idle.

Counts are lists of integers: a change touches a few pages, and numpy's calls would cost more.
"""

from __future__ import annotations

from collections.abc import Iterator

from radixlang.runtime.cache.pages.slots import Run, Slots, runs_of


class PageTally:
    """Slots by page that are owned, those of them that are busy (not idle), and a running total.

    A page without a busy slot is level: it is free or could be evicted. Counted as slots change
    hands. With pages of one slot only the total is kept.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._page_size = page_size
        self.num_level_pages = num_pages
        num_counted = num_pages if page_size > 1 else 0
        self._owned = [0] * num_counted
        self._busy = [0] * num_counted

    def mark_idle(self, slots: Slots, sign: int) -> None:
        """Count distinct owned slots, in any order, as idle (+1) or no longer idle (-1)."""
        if self._page_size == 1:
            self.num_level_pages += sign * len(slots)
        else:
            for run in runs_of(slots):
                self._add_busy(run, -sign)

    def take(self, run: Run) -> None:
        """Count the slots of a run as owned and busy."""
        if self._page_size == 1:
            self.num_level_pages -= run[1] - run[0]
        else:
            for page, count in self._parts(run):
                self._owned[page] += count
            self._add_busy(run, +1)

    def give(self, run: Run, *, idle: bool = False) -> Run:
        """Count the slots of a run as free; returns the run of pages that became free.

        `idle`: the slots were idle, so level pages stay level; else they were busy.
        """
        if self._page_size == 1:
            self.num_level_pages += 0 if idle else run[1] - run[0]
            return run
        owned = self._owned
        for page, count in self._parts(run):
            owned[page] -= count
        if not idle:
            self._add_busy(run, -1)
        first, last = run[0] // self._page_size, (run[1] - 1) // self._page_size
        if owned[first]:
            first += 1
        if last >= first and owned[last]:
            last -= 1
        return first, last + 1

    def _add_busy(self, run: Run, sign: int) -> None:
        busy = self._busy
        for page, count in self._parts(run):
            before = busy[page]
            busy[page] = after = before + sign * count
            self.num_level_pages += (after == 0) - (before == 0)

    def _parts(self, run: Run) -> Iterator[tuple[int, int]]:
        """The pages of a run, each with the number of its slots in the run."""
        start, stop = run
        size = self._page_size
        page = start // size
        while start < stop:
            end = min((page + 1) * size, stop)
            yield page, end - start
            start, page = end, page + 1
