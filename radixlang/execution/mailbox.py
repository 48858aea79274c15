"""An actor without a thread: commands are drained by whoever finds it idle.

The program's thread posts when it flushes nodes, the backend's when a result comes. Commands run
one at a time and never wait; readers wait for what they need on one condition.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from radixlang.errors import NeedsValueError, ProgramError
from radixlang.execution.recorder import Recorder
from radixlang.process_owner import ProcessOwner
from radixlang.reply import Sleepers


class Actor(Recorder):
    """The inbox of a run, and the waiting of its readers."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.error: ProgramError | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # what an async program runs on
        self._owner = ProcessOwner(f"the run of program {name!r}")
        self._inbox: deque[Callable[[], None]] = deque()
        self._driver: dict[str, object] = {}  # the call of `post` that drains, if there is one
        self._sleepers = Sleepers()
        self._async_waiters: list[tuple[Callable[[], bool], Any, Any]] = []

    def _guarded(self, command: Callable[[], None]) -> None:
        """Run a command; its error becomes the run's."""
        raise NotImplementedError

    def _drive(self) -> None:
        """Do what commands have made possible."""
        raise NotImplementedError

    def post(self, command: Callable[[], None]) -> None:
        """Run a command in the actor: here if it is idle, else by whoever is in it.

        Who drains is written down in one step that no interrupt can divide, so that one which
        arrives anywhere here leaves the actor idle.
        """
        self._inbox.append(command)
        driver, me = self._driver, object()
        try:
            while self._inbox and driver.setdefault("now", me) is me:
                while self._inbox:
                    self._guarded(self._inbox.popleft())
                    self._drive()
                del driver["now"]
        finally:
            if driver.get("now") is me:
                del driver["now"]

    def wait(self, predicate: Callable[[], bool]) -> None:
        """Block until predicate() holds or the run has failed. It must stay true once it is.

        Raises:
            ForkedError: this is a child of the process that runs the program.
        """
        if predicate() or self.error is not None:
            return
        self._owner.check()
        self._sleepers.wait_for(lambda: predicate() or self.error is not None)

    async def wait_async(self, predicate: Callable[[], bool]) -> None:
        """Like `wait`, without blocking the event loop; it blocks where there is none."""
        loop = running_loop()
        if loop is None:
            return self.wait(predicate)
        future = loop.create_future()
        entry = (predicate, loop, future)
        self._async_waiters.append(entry)
        try:
            if not predicate() and self.error is None:
                self._owner.check()
                await future
        finally:
            self._async_waiters.remove(entry)

    def check_may_block(self, is_ready: bool, asked: str, instead: str) -> None:
        """Refuse to wait on the event loop that the program itself runs on.

        Readers call it before they hand anything to the executor: what is refused depends on
        the program, never on how fast the model was.

        Raises:
            NeedsValueError: the value is not there yet, and this is the loop's own thread.
        """
        if is_ready or self.loop is None or self.error is not None:
            return
        if running_loop() is self.loop:
            raise NeedsValueError(
                f"{asked} was asked for before it is there, and waiting here would stop the event "
                f"loop that this async program runs on: {instead}; plain code that reads goes "
                "into await asyncio.to_thread(…)"
            )

    def notify(self) -> None:
        """Something a reader may wait for has changed."""
        self._sleepers.wake()
        for predicate, loop, future in self._async_waiters.copy():
            if predicate() or self.error is not None:
                _wake_loop(loop, future)

    @property
    def has_waiters(self) -> bool:
        """Whether somebody waits for a change."""
        return bool(self._sleepers or self._async_waiters)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _wake_loop(loop: Any, future: Any) -> None:
    def wake() -> None:
        if not future.done():
            future.set_result(None)

    with suppress(RuntimeError):  # the loop has been closed: nobody waits there any more
        loop.call_soon_threadsafe(wake)
