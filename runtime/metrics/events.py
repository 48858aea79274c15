"""What happens to requests and to the cache, as it happens: a stream of small typed events.

While nobody listens an event costs one truth test. Listeners are called on the engine's thread
between two steps, so they must be quick and must not block.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["admit", "finish", "fail", "retract", "insert", "evict", "quantize", "compact"]
log = logging.getLogger("radixlang.runtime")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in an engine.

    What `num_tokens` counts depends on the kind:

    admit: tokens found in the cache, when a request gets to run (again)
    finish: tokens generated, when a request is done (0 for a scoring)
    fail: tokens generated, when a request ends with an error
    retract: tokens computed by a request that gives up its memory, to go on later
    insert: tokens new in the tree
    evict: tokens that left the tree in this round, for whatever reason
    quantize: tokens that moved to 8 bits in this round
    compact: tokens that moved to make hot paths contiguous in this round

    `holder` names the request where there is one; `time_s` is monotonic.
    """

    kind: Kind
    num_tokens: int
    holder: str
    time_s: float


Listener = Callable[[Event], None]


class Events:
    """Notes events and hands them to listeners. Belongs to the engine's thread."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._pending: list[Event] = []
        self._counters: dict[Kind, Callable[[], int]] = {}
        self._seen: dict[Kind, int] = {}

    def add(self, kind: Kind, num_tokens: int, holder: str = "") -> None:
        """Note an event, if anybody listens."""
        if self._listeners:
            self._pending.append(Event(kind, num_tokens, holder, time.monotonic()))

    def count(self, kind: Kind, counter: Callable[[], int]) -> None:
        """Make an event of a counter's growth, once a round."""
        self._counters[kind] = counter

    def listen(self, listener: Listener) -> None:
        """Call it for every event from now on."""
        if not self._listeners:
            self._seen = {kind: counter() for kind, counter in self._counters.items()}
        self._listeners.append(listener)

    def leave(self, listener: Listener) -> None:
        """Call it no more; again is fine."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def deliver(self) -> None:
        """Hand out what has happened since the last time; a listener's error is logged."""
        if not self._listeners:
            return
        for kind, counter in self._counters.items():
            grown, self._seen[kind] = counter() - self._seen[kind], counter()
            if grown > 0:
                self.add(kind, grown)
        pending, self._pending = self._pending, []
        for event in pending:
            for listener in tuple(self._listeners):
                _call(listener, event)


def _call(listener: Listener, event: Event) -> None:
    try:
        listener(event)
    except Exception:
        log.exception("a listener of the runtime's events failed")
