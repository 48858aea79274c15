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
AGAIN_S = 0.05
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
    bound = _Bound(seconds)
    try:
        value = function()
    except _OutOfTime:
        bound.end()
        raise TimeoutError(f"it took longer than {seconds:g} s") from None
    except BaseException:
        bound.end()
        raise
    bound.end()
    return value


class _Bound:
    """Raises _OutOfTime in the thread that made it, until that thread says that it has ended.

    Once is not enough: an error that comes while a finaliser runs is dropped with a remark.
    """

    def __init__(self, seconds: float) -> None:
        self._target = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._ended = threading.Event()
        threading.Thread(target=self._watch, args=(seconds,), daemon=True).start()

    def _watch(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            seconds = AGAIN_S
            with self._lock:
                if not self._ended.is_set():
                    _set_error(self._target, ctypes.py_object(_OutOfTime))

    def end(self) -> None:
        """No error from here on; one that was sent and has not come yet comes here, unheard.

        It is not taken back by PyThreadState_SetAsyncExc(None): that leaves CPython 3.11's signal
        for it set, and a traced thread then turns on the spot for ever at its next call.
        """
        while True:
            try:
                with self._lock:
                    self._ended.set()
                for _ in range(100):  # it comes at the next jump back
                    pass
                return
            except _OutOfTime:
                continue
