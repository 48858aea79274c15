"""The operations of one branch, run in order on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeAlias, TypeVar

from radixlang.errors import CancelledError
from radixlang.protocol import Generation
from radixlang.reply import AnyFuture

Prompt = TypeVar("Prompt")
Work: TypeAlias = Callable[[], Awaitable[None]]


class OperationQueue(Generic[Prompt]):
    """The operations of one branch, and the prompt that they read and extend.

    `error` is the first error, with which every later operation fails. A queue that is not born
    waits for its fork.
    """

    def __init__(self, prompt: Prompt, *, is_born: bool) -> None:
        self.prompt = prompt
        self.error: BaseException | None = None
        self.is_born = is_born
        self.running: tuple[asyncio.Future[None], AnyFuture | None] | None = None
        self.reading: asyncio.Future[None] | None = None  # of a generation's stream
        self._works: deque[tuple[Work, AnyFuture | None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, work: Work, future: AnyFuture | None) -> None:
        """Run after what is queued."""
        self._works.append((work, future))
        self.go_on()

    def go_on(self) -> None:
        """Run what is queued, unless that goes on already."""
        if self.is_born and self._works and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._works:
                work, future = self._works.popleft()
                if future is not None and future.done():
                    continue
                if self.error is not None and future is not None:
                    future.set_exception(self.error)
                    continue
                await self._run_one(work, future)
        finally:
            self._task = None

    async def _run_one(self, work: Work, future: AnyFuture | None) -> None:
        inner = asyncio.ensure_future(work())
        self.running = (inner, future)
        try:
            await inner
        except asyncio.CancelledError:
            self.fail(CancelledError("the request was cancelled"), future)
            if not inner.cancelled():
                raise  # this task, at the end of the backend
        except BaseException as error:
            self.fail(error, future)
        finally:
            self.running = None

    def fail(self, error: BaseException, future: AnyFuture | None) -> None:
        """Keep the first error, and end a future with it."""
        self.error = self.error or error
        if future is not None and not future.done():
            future.set_exception(error)

    def cancel(self, future: AnyFuture | None) -> None:
        """Cancel one operation, or (None) everything."""
        if future is not None and future.done():
            return
        error = CancelledError("the branch was cancelled by its owner")
        if self.running is not None and future in (None, self.running[1]):
            self.running[0].cancel()
        self.fail(error, future)
        if future is None:
            for _, queued in self._works:
                self.fail(error, queued)

    def stop(self, generation: Generation) -> None:
        """End a generation that is being read."""
        if self.running is not None and self.running[1] is generation and self.reading is not None:
            self.reading.cancel()
