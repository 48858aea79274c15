"""A stream of small typed events about requests and the cache.

Without a listener an event costs one truth test. Each listener is called on a separate thread, in
the order of events: a slow one, or one that waits for the runtime, delays no step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Literal

Kind = Literal["admit", "finish", "fail", "retract", "insert", "evict", "quantize", "compact"]
MAX_PENDING = 100_000  # events queued for one listener; further ones are dropped, with a warning
LAST_S = 1.0  # seconds that ending a listener waits for it to receive queued events

log = logging.getLogger("radixlang.runtime")


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """One event of an engine.

    The meaning of `num_tokens` depends on the kind:

    admit: tokens found in the cache, when a request begins to run (again)
    finish: tokens generated, when a request is done (0 for a scoring)
    fail: tokens generated, when a request ends with an error
    retract: tokens computed by a request that is preempted and resumes later
    insert: tokens inserted into the tree
    evict: tokens removed from the tree in this round, for any reason
    quantize: tokens moved to 8 bits in this round
    compact: tokens moved to make hot paths contiguous in this round

    `holder` names the request if there is one; `time_s` is monotonic.
    """

    kind: Kind
    num_tokens: int
    holder: str
    time_s: float


Listener = Callable[[EngineEvent], None]


class _Courier:
    """Calls one listener on a separate thread, which ends with `end`."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._queue: SimpleQueue[EngineEvent | threading.Event | None] = SimpleQueue()
        self._is_behind = False
        self._thread = threading.Thread(target=self._run, name="radixlang-events", daemon=True)
        self._thread.start()

    def put(self, event: EngineEvent) -> None:
        """Queue an event for the listener; never blocks."""
        if self._queue.qsize() < MAX_PENDING:
            self._queue.put(event)
            self._is_behind = False
        elif not self._is_behind:
            self._is_behind = True
            log.warning("a listener is %d events behind; those that follow are lost", MAX_PENDING)

    def settle(self, timeout_s: float) -> bool:
        """Wait until the listener has received all events so far; False if it has not in time."""
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return True
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(timeout_s)

    def end(self) -> None:
        """Let the thread end after all events so far, and wait for it up to LAST_S."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(LAST_S)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                self.listener(item)
            except BaseException:  # even SystemExit must end neither the thread nor the engine
                log.exception("a listener of the runtime's events failed")


class Events:
    """Records events and passes them to listeners. Belongs to the engine's thread."""

    def __init__(self) -> None:
        self._couriers: list[_Courier] = []
        self._pending: list[EngineEvent] = []
        self._counters: dict[Kind, Callable[[], int]] = {}
        self._seen: dict[Kind, int] = {}

    def add(self, kind: Kind, num_tokens: int, holder: str = "") -> None:
        """Record an event, if there is a listener."""
        if self._couriers:
            self._pending.append(EngineEvent(kind, num_tokens, holder, time.monotonic()))

    def count(self, kind: Kind, counter: Callable[[], int]) -> None:
        """Make an event from the growth of a counter, once a round."""
        self._counters[kind] = counter

    def listen(self, listener: Listener) -> None:
        """Call the listener for every event from now on."""
        if not self._couriers:
            self._seen = {kind: counter() for kind, counter in self._counters.items()}
        self._couriers.append(_Courier(listener))

    def leave(self, listener: Listener) -> list[_Courier]:
        """Queue nothing more for a listener; returns its couriers, which the caller must end."""
        left = [each for each in self._couriers if each.listener == listener][:1]
        self._couriers = [each for each in self._couriers if each not in left]
        return left

    def leave_all(self) -> list[_Courier]:
        """The same as `leave`, for every listener."""
        left, self._couriers = self._couriers, []
        return left

    def settle(self, timeout_s: float = LAST_S) -> bool:
        """Wait, on a thread other than the engine's, until all listeners are up to date."""
        return all(each.settle(timeout_s) for each in tuple(self._couriers))

    def deliver(self) -> None:
        """Queue the events since the last call for the listeners."""
        if not self._couriers:
            return
        for kind, counter in self._counters.items():
            grown, self._seen[kind] = counter() - self._seen[kind], counter()
            if grown > 0:
                self.add(kind, grown)
        pending, self._pending = self._pending, []
        for event in pending:
            for courier in self._couriers:
                courier.put(event)
