"""The fake's engine thread: one daemon, alive only while there is work."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from radixlang.errors import RuntimeClosedError
from radixlang.process_owner import ProcessOwner

log = logging.getLogger("radixlang")
_IDLE_S = 0.5


class Worker:
    """One daemon thread that runs posted work in order, and ends when idle."""

    def __init__(self) -> None:
        self._owner = ProcessOwner("the fake backend")
        self.lock = threading.Lock()  # taken as it is: that is one step to an interrupt
        self._changed = threading.Condition(self.lock)
        self._now: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._alive = False
        self._idle = False
        self._turn: object = None  # of the thread that runs
        self._closed = False

    def check_open(self) -> None:
        """Raise a RuntimeClosedError after close, and in a process forked from this one."""
        self._owner.check()
        if self._closed:
            raise RuntimeClosedError("the fake backend was closed")

    def close(self) -> None:
        """Take no more work; what is queued still runs."""
        self._closed = True

    def post(self, work: Callable[[], None], due: float | None = None) -> None:
        """Queue work for now, or for a given time."""
        if due is None:
            self.check_open()
        with self.lock:
            if due is None:
                self._now.append(work)
            else:
                heapq.heappush(self._later, (due, next(self._order), work))
            if not self._alive:
                self._start()
            if self._idle:
                self._changed.notify()

    def _start(self) -> None:
        self._turn = turn = object()
        loop = partial(self._loop, turn)
        self._alive = True
        try:
            threading.Thread(target=loop, name="radixlang-fake", daemon=True).start()
        except BaseException:  # an interrupt: if it runs all the same, the next one replaces it
            self._alive = False
            raise

    def _loop(self, turn: object) -> None:
        while (work := self._next(turn)) is not None:
            try:
                work()
            except BaseException:
                log.exception("the fake backend failed")

    def _next(self, turn: object) -> Callable[[], None] | None:
        with self.lock:
            while self._turn is turn:
                if self._later and self._later[0][0] <= time.monotonic():
                    return heapq.heappop(self._later)[2]
                if self._now:
                    return self._now.popleft()
                wait = self._later[0][0] - time.monotonic() if self._later else _IDLE_S
                self._idle = True
                woken = self._changed.wait(max(0.0, wait))
                self._idle = False
                if not woken and not self._later and not self._now:
                    self._alive = False
                    return None
            return None
