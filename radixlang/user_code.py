"""Threads that run users' functions: callbacks, validators, scorers, `__format__`.

A backend's thread and a run's mailbox must never wait for a user's function: it may be slow, and
it may run a program itself. So each running function has a thread; an idle thread ends after
some seconds.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from radixlang.json_types import TypeForm

IDLE_S = 5.0  # seconds after which a thread without work ends

_SCALARS = frozenset({str, int, float, bool, type(None)})
_CONTAINERS = frozenset({list, dict, tuple, set, frozenset})

log = logging.getLogger("radixlang")


class UserThreads:
    """Starts functions at once, each on a daemon thread that runs no other one meanwhile."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        # `with` takes the lock itself, not the Condition: that is one step to an interrupt.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[Callable[[], object]] = deque()
        self._num_idle = 0

    def submit(self, call: Callable[[], object]) -> None:
        """Run a function soon; an exception that it raises is logged."""
        if self._process != os.getpid():
            self._begin()  # a forked process has none of its parent's threads
        with self._lock:
            self._waiting.append(call)
            if self._num_idle >= len(self._waiting):
                self._changed.notify()
                return
        threading.Thread(target=self._work, name="radixlang-user-code", daemon=True).start()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except BaseException:
                log.exception("a callback failed")
            del call  # so that its objects can be freed while the thread waits

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            if not self._waiting:
                self._num_idle += 1
                try:
                    self._changed.wait(IDLE_S)
                finally:
                    self._num_idle -= 1
            return self._waiting.popleft() if self._waiting else None


user_threads = UserThreads()


# the value is of the function's own type, and None beside an error
def offload(call: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
    """Run a user's function on a separate thread, which then calls `then(value, error)`."""

    def work() -> None:
        try:
            value = call()
        except BaseException as error:
            then(None, error)
        else:
            then(value, None)

    user_threads.submit(work)


def is_users_type(kind: TypeForm) -> bool:
    """Whether making a value of a type may run user code."""
    if kind is None or kind in _SCALARS or kind in _CONTAINERS or get_origin(kind) is Literal:
        return False
    origin, parts = get_origin(kind), [each for each in get_args(kind) if each is not Ellipsis]
    if origin in _CONTAINERS or origin in (Union, UnionType):
        return any(map(is_users_type, parts))
    return True


def is_users_value(value: Any) -> bool:  # a list is narrowed by its exact type
    """Whether formatting a value may run user code."""
    if type(value) in (list, tuple):
        return any(map(is_users_value, value))
    return type(value) not in _SCALARS
