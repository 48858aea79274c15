"""A bound on how long a piece of Python may run in its own thread.

What compiles a constraint runs in the thread of the program that asks for it, so it blocks no
other; what it must not do is run for ever. A timer raises an exception inside that thread, between
two bytecodes. No thread is left behind, and nothing has to be sent to another process.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _OutOfTime(BaseException):  # no `except Exception` on the way up takes it
    pass


def within(seconds: float, function: Callable[[], T]) -> T:
    """The function's value, computed in this thread.

    A single call into C, such as a regex match, is not cut short: what is called here must be
    Python, or bound its own time.

    Raises:
        TimeoutError: it took longer.
    """
    bound = _Bound()
    timer = threading.Timer(seconds, bound.expire)
    timer.daemon = True
    timer.start()
    try:
        try:
            return function()
        finally:
            bound.end()
            timer.cancel()
    except _OutOfTime:
        raise TimeoutError(f"it took longer than {seconds:g} s") from None


class _Bound:
    """Raises _OutOfTime in the thread that made it, until that thread says that it has ended."""

    def __init__(self) -> None:
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._has_ended = False

    def expire(self) -> None:
        with self._lock:
            if not self._has_ended:
                _set_error(self._thread, ctypes.py_object(_OutOfTime))

    def end(self) -> None:
        """No error from here on; one that was set and has not come yet is taken back."""
        with self._lock:
            self._has_ended = True
            _set_error(self._thread, None)
