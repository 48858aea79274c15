"""Deadlines of requests, running and queued."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator

from radixlang.reply import AnyFuture
from radixlang.runtime.requests.branch_state import BranchState, Operation, futures_of


class RequestDeadlines:
    """The deadlines of requests, soonest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, BranchState, AnyFuture]] = []
        self._tickets = itertools.count()

    def watch(self, state: BranchState, operation: Operation) -> None:
        """Watch the deadline of an operation, if it has one."""
        deadline_s: float | None = getattr(operation, "deadline_s", None)
        if deadline_s is not None:
            for future in futures_of(operation):
                heapq.heappush(self._heap, (deadline_s, next(self._tickets), state, future))

    def expired(self) -> Iterator[BranchState]:
        """Branches with a request that is past its deadline."""
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            _, _, state, future = heapq.heappop(self._heap)
            if not future.done():
                yield state
