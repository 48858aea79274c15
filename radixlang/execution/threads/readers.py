"""Readers of a run: each waits for a condition, on a thread or on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from radixlang.errors import NeedsValueError
from radixlang.process_owner import ProcessOwner
from radixlang.reply import Sleepers

Waiter: TypeAlias = tuple[Callable[[], bool], asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Readers:
    """The readers that wait for a run. A failure of the run wakes all of them.

    Args:
        owner: the process of the run.
        has_failed: whether the run has an error.
    """

    def __init__(self, owner: ProcessOwner, has_failed: Callable[[], bool]) -> None:
        self.event_loop: asyncio.AbstractEventLoop | None = None  # what an async program runs on
        self._owner = owner
        self._has_failed = has_failed
        self._sleepers = Sleepers()
        self._async_waiters: list[Waiter] = []

    def wait(self, predicate: Callable[[], bool]) -> None:
        """Block until predicate() holds or the run has failed. Once true, it must stay true.

        Raises:
            ForkedError: this is a child of the process that runs the program.
        """
        if predicate() or self._has_failed():
            return
        self._owner.check()
        self._sleepers.wait_for(lambda: predicate() or self._has_failed())

    async def wait_async(self, predicate: Callable[[], bool]) -> None:
        """Like `wait`, without blocking the event loop; it blocks if no loop runs."""
        loop = running_loop()
        if loop is None:
            return self.wait(predicate)
        future = loop.create_future()
        entry = (predicate, loop, future)
        self._async_waiters.append(entry)
        try:
            if not (predicate() or self._has_failed()):
                self._owner.check()
                await future
        finally:
            self._async_waiters.remove(entry)

    def check_may_block(self, is_ready: bool, asked: str, instead: str) -> None:
        """Refuse to wait on the event loop that the program itself runs on.

        Readers call it before they hand anything to the executor, so that the refusal depends on
        the program, never on the model's speed.

        Raises:
            NeedsValueError: the value is not there yet, and this is the loop's own thread.
        """
        if is_ready or self.event_loop is None or self._has_failed():
            return
        if running_loop() is self.event_loop:
            raise NeedsValueError(
                f"{asked} was asked for before it is there, and waiting here would stop the event "
                f"loop that this async program runs on: {instead}; plain code that reads goes "
                "into await asyncio.to_thread(…)"
            )

    def notify(self) -> None:
        """Let readers check their conditions, because something has changed."""
        self._sleepers.wake()
        for predicate, loop, future in self._async_waiters.copy():
            if predicate() or self._has_failed():
                _wake_loop(loop, future)

    @property
    def are_waiting(self) -> bool:
        """Whether a reader waits."""
        return bool(self._sleepers or self._async_waiters)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _wake_loop(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    def wake() -> None:
        if not future.done():
            future.set_result(None)

    with suppress(RuntimeError):  # the loop has been closed: nobody waits there any more
        loop.call_soon_threadsafe(wake)
