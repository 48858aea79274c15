"""Threads that start the rows of a batch; leaving the batch does not wait for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger("radixlang")


class BatchThreads:
    """At most `limit` daemon threads. An interrupt of `submit` or `close` leaves nothing locked."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_started = 0
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    def submit(self, call: Callable[[], object]) -> None:
        """Run a function soon; an exception that it raises is logged."""
        self._work.put(call)
        if self._num_started < self._limit:
            self._num_started += 1
            threading.Thread(target=self._run, name="radixlang-batch", daemon=True).start()

    def close(self) -> None:
        """End each thread once it has nothing left to do."""
        for _ in range(self._num_started):
            self._work.put(None)

    def _run(self) -> None:
        while (call := self._work.get()) is not None:
            try:
                call()
            except BaseException:
                log.exception("a row of a batch could not be started")
