"""An actor without a thread: commands are drained by whoever finds it idle.

The program's thread posts when it flushes nodes, the backend's when a result comes. Commands run
one at a time and never wait; readers wait for what they need on one condition.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from radixlang.errors import ProgramError
from radixlang.recorder import Recorder


class Actor(Recorder):
    """The inbox of a run, and the waiting of its readers."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.error: ProgramError | None = None
        self._inbox: deque[Callable[[], None]] = deque()
        self._actor = threading.Lock()
        self._condition = threading.Condition(threading.Lock())
        self._num_waiting = 0
        self._async_waiters: list[tuple[Callable[[], bool], Any, Any]] = []

    def _guarded(self, command: Callable[[], None]) -> None:
        """Run a command; its error becomes the run's."""
        raise NotImplementedError

    def _drive(self) -> None:
        """Do what commands have made possible."""
        raise NotImplementedError

    def post(self, command: Callable[[], None]) -> None:
        """Run a command in the actor: here if it is idle, else by whoever is in it."""
        self._inbox.append(command)
        while self._inbox and self._actor.acquire(blocking=False):
            try:
                while self._inbox:
                    self._guarded(self._inbox.popleft())
                    self._drive()
            finally:
                self._actor.release()

    def wait(self, predicate: Callable[[], bool]) -> None:
        """Block until predicate() holds or the run has failed. It must stay true once it is."""
        if predicate() or self.error is not None:
            return
        with self._condition:
            self._num_waiting += 1
            try:
                self._condition.wait_for(lambda: predicate() or self.error is not None)
            finally:
                self._num_waiting -= 1

    async def wait_async(self, predicate: Callable[[], bool]) -> None:
        """Like `wait`, without blocking the event loop."""
        future = asyncio.get_running_loop().create_future()
        entry = (predicate, asyncio.get_running_loop(), future)
        with self._condition:
            self._num_waiting += 1
            self._async_waiters.append(entry)
        try:
            if not predicate() and self.error is None:
                await future
        finally:
            with self._condition:
                self._num_waiting -= 1
                if entry in self._async_waiters:
                    self._async_waiters.remove(entry)

    def notify(self) -> None:
        """Something a reader may wait for has changed."""
        if self._num_waiting:
            with self._condition:
                self._condition.notify_all()
                for predicate, loop, future in tuple(self._async_waiters):
                    if predicate() or self.error is not None:
                        _wake_loop(loop, future)


def _wake_loop(loop: Any, future: Any) -> None:
    def wake() -> None:
        if not future.done():
            future.set_result(None)

    with suppress(RuntimeError):  # the loop has been closed: nobody waits there any more
        loop.call_soon_threadsafe(wake)
