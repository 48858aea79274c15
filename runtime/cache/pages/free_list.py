"""Free pages as runs of neighbours, so that a request for many gets contiguous ones."""

from __future__ import annotations

import heapq


class FreeRuns:
    """The free pages of a pool, kept as maximal runs [start, stop).

    Requests are cut from the front of the longest run (worst fit): prompts stay contiguous,
    and what is left of a run stays long. Freeing merges a run with both neighbours. Every
    operation costs O(log n) in the number of runs.
    """

    def __init__(self, num_pages: int) -> None:
        self._stops: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (-length, start), stale entries allowed
        self.num_pages = 0
        if num_pages:
            self.give(0, num_pages)

    def runs(self) -> list[tuple[int, int]]:
        """All runs (start, stop), in order."""
        return sorted(self._stops.items())

    @property
    def num_runs(self) -> int:
        """Number of runs of free memory."""
        return len(self._stops)

    def give(self, start: int, num_pages: int) -> None:
        """Add a run, which must not be free."""
        stop = start + num_pages
        self.num_pages += num_pages
        if start in self._starts:
            start = self._starts.pop(start)
            del self._stops[start]
        if stop in self._stops:
            after = self._stops.pop(stop)
            del self._starts[after]
            stop = after
        self._add(start, stop)

    def take(self, num_pages: int) -> list[tuple[int, int]]:
        """Cut num_pages from the longest runs; there must be as many free pages."""
        pieces = []
        while num_pages:
            start, stop = self._pop_longest()
            cut = min(stop, start + num_pages)
            self.num_pages -= cut - start
            num_pages -= cut - start
            pieces.append((start, cut))
            if cut < stop:
                self._add(cut, stop)
        return pieces

    def take_at(self, start: int, max_pages: int) -> int:
        """Cut up to max_pages from the run that begins at start; returns how many (0: none)."""
        stop = self._stops.get(start)
        if stop is None or max_pages <= 0:
            return 0
        cut = min(stop, start + max_pages)
        self._remove(start, stop)
        self.num_pages -= cut - start
        if cut < stop:
            self._add(cut, stop)
        return cut - start

    def longest(self) -> int:
        """Length of the longest run, in pages."""
        while self._heap and not self._is_live(self._heap[0]):
            heapq.heappop(self._heap)
        return -self._heap[0][0] if self._heap else 0

    def _add(self, start: int, stop: int) -> None:
        self._stops[start] = stop
        self._starts[stop] = start
        heapq.heappush(self._heap, (start - stop, start))
        if len(self._heap) > 2 * len(self._stops) + 64:
            self._heap = [(first - last, first) for first, last in self._stops.items()]
            heapq.heapify(self._heap)

    def _remove(self, start: int, stop: int) -> None:
        del self._stops[start]
        del self._starts[stop]

    def _pop_longest(self) -> tuple[int, int]:
        while True:
            entry = heapq.heappop(self._heap)
            if self._is_live(entry):
                start, stop = entry[1], entry[1] - entry[0]
                self._remove(start, stop)
                return start, stop

    def _is_live(self, entry: tuple[int, int]) -> bool:
        return self._stops.get(entry[1]) == entry[1] - entry[0]
