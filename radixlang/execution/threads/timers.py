"""The thread that watches the deadlines of all runs, so that a run holds no thread for its own."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable

log = logging.getLogger("radixlang")
_IDLE_S = 2.0  # seconds without a deadline after which the thread ends


class DeadlineWatch:
    """Calls functions at given times, on a daemon thread that lives while there are any."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._heap: list[tuple[float, int, list[Callable[[], None] | None]]] = []
        # `with` takes the lock itself, not the Condition: that is one step to an interrupt. It may
        # be taken again by its owner, as `after` may be called inside a garbage collection.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._order = itertools.count()
        self._running = False

    def after(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Schedule a call; the returned function cancels it."""
        if self._process != os.getpid():
            self._begin()  # a forked process has none of its parent's threads
        entry: list[Callable[[], None] | None] = [call]
        with self._lock:
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._order), entry))
            if not self._running:
                self._start()
            self._changed.notify()

        def cancel() -> None:
            entry[0] = None

        return cancel

    def _start(self) -> None:
        thread = threading.Thread(target=self._watch, name="radixlang-deadlines", daemon=True)
        self._running = True
        try:
            thread.start()
        except BaseException:  # an interrupt: it may or may not run, and two threads do no harm
            self._running = False
            raise

    def _watch(self) -> None:
        while True:
            with self._lock:
                call = self._next_due()
                idle = call is None and not self._heap and not self._changed.wait(_IDLE_S)
                if idle and not self._heap:
                    self._running = False
                    return
            if call is not None:
                _call_safely(call)

    def _next_due(self) -> Callable[[], None] | None:
        while self._heap:
            due, _, entry = self._heap[0]
            left = due - time.monotonic()
            if entry[0] is not None and left > 0:
                self._changed.wait(left)
                return None
            heapq.heappop(self._heap)
            if entry[0] is not None:
                return entry[0]
        return None


def _call_safely(call: Callable[[], None]) -> None:
    """Call a function whose error must not end the thread that all others wait for."""
    try:
        call()
    except BaseException:
        log.exception("a timed call failed")


deadlines = DeadlineWatch()
