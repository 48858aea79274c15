"""A future that a backend completes, and that an interrupt of its reader never leaves locked.

Python's own Future is locked by a Condition, whose `__exit__` is Python code: an interrupt (Ctrl-C)
that arrives there leaves it locked, and the backend's thread then waits for ever to set a result.
A reader of a Reply does not take the future's lock: it appends to lists, which is atomic, and
sleeps on a lock that only it waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, TypeAlias, TypeVar

from radixlang.process_owner import ProcessOwner
from radixlang.user_code import user_threads

T = TypeVar("T")
AnyFuture: TypeAlias = "Future[Any]"  # for code that fails or drops futures, and reads none
log = logging.getLogger("radixlang")
_CANCELLED = ("CANCELLED", "CANCELLED_AND_NOTIFIED")


class Sleepers:
    """Threads that wait for a condition. Nothing is locked while they wait or are woken."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: list[threading.Lock] = []

    def __bool__(self) -> bool:
        return bool(self._locks)

    def wait_for(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Sleep until `holds()`, checked after every `wake`; False if the time is over first."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        mine = threading.Lock()
        mine.acquire()
        self._locks.append(mine)
        try:
            while not holds():
                left = -1.0 if deadline is None else deadline - time.monotonic()
                if deadline is not None and left <= 0:
                    return False
                mine.acquire(timeout=min(left, threading.TIMEOUT_MAX))
            return True
        finally:
            self._locks.remove(mine)

    def wake(self) -> None:
        """Let all waiting threads check their condition again."""
        for each in self._locks.copy():
            try:
                each.release()
            except RuntimeError:  # it was woken already
                continue


class Reply(Future[T]):
    """A future that a backend completes from its own thread, on which no user code may run."""

    def __init__(self) -> None:
        super().__init__()
        self._owner = ProcessOwner("the request")
        self._sleepers = Sleepers()
        self._calls: deque[Callable[[], object]] = deque()
        super().add_done_callback(_tell_end)

    def done(self) -> bool:
        """Whether there is a result or an error."""
        return self._state == "FINISHED" or self._state in _CANCELLED

    def cancelled(self) -> bool:
        """Whether it was cancelled before it began."""
        return self._state in _CANCELLED

    def running(self) -> bool:
        """Whether the caller alone can no longer cancel it."""
        return self._state == "RUNNING"

    def result(self, timeout: float | None = None) -> T:
        """The result; waits for it, for `timeout` seconds at most.

        Raises:
            TimeoutError: there is no result within the timeout.
            ForkedError: there will be none, as this is a forked child of the process that asked.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        result: Any = self._result  # set, as there is no error; a T may be None
        return result  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None if there is a result; waits as `result` does."""
        if not self.done():
            self._owner.check()
            if not self._sleepers.wait_for(self.done, timeout):
                raise FutureTimeoutError
        if self.cancelled():
            raise FutureCancelledError
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call fn(self) at the end, on a separate thread: it may be slow, and may run a program."""
        self.when_done(lambda: user_threads.submit(partial(fn, self)))

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call back at the end from the backend's thread, or at once if it has ended. The callback
        must be quick and never wait, such as a post to a mailbox."""
        self._calls.append(callback)
        if self.done():
            self._call_back()

    def _call_back(self) -> None:
        while True:
            try:
                callback = self._calls.popleft()
            except IndexError:
                return
            guarded(callback)


def _tell_end(reply: Future[T]) -> None:
    assert isinstance(reply, Reply)
    reply._sleepers.wake()
    reply._call_back()


def guarded(callback: Callable[[], object]) -> None:
    """Call a function whose errors must not end a backend's thread or skip other callbacks."""
    try:
        callback()
    except BaseException:
        if threading.current_thread() is threading.main_thread():
            raise  # the main thread is the user's: it may be an interrupt
        log.exception("a callback failed")
