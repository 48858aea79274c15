"""A bound on how long a piece of Python may run in its own thread.

What compiles a constraint runs in the thread of the program that asks for it, so it blocks no
other; what it must not do is run for ever. A timer raises an exception inside that thread, between
two bytecodes. No thread is left behind, and nothing has to be sent to another process. What counts
is the thread's own computing, where the platform tells it, so that a busy machine refuses nothing.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from radixlang.runtime.process.shared_setting import Undo, WhileAsked
from radixlang.runtime.process.switch_interval import often

T = TypeVar("T")
AGAIN_S = 0.05
_set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _OutOfTime(BaseException):  # no `except Exception` on the way up takes it
    pass


def _drop_remarks() -> Undo:
    """Python remarks on an error that comes while a finaliser runs, which it drops there."""
    usual = sys.unraisablehook

    def hook(remark: sys.UnraisableHookArgs) -> None:
        if remark.exc_type is not _OutOfTime:
            usual(remark)

    def undo() -> None:
        if sys.unraisablehook is hook:
            sys.unraisablehook = usual

    sys.unraisablehook = hook
    return undo


_unheard = WhileAsked(_drop_remarks)


def within(seconds: float, function: Callable[[], T]) -> T:
    """The function's value, computed in this thread in at most so many seconds of its own.

    A single call into C, such as a regex match, is not cut short: what is called here must be
    Python, or bound its own time.

    Raises:
        TimeoutError: it took longer.
    """
    with often(), _unheard():
        bound = _Bound(seconds)
        try:
            try:
                bound.start()
                return function()
            finally:
                bound.end()
        except _OutOfTime:  # perhaps at the very entry of `end`
            bound.end()
            raise TimeoutError(f"it took longer than {seconds:g} s") from None


class _Bound:
    """Raises _OutOfTime in the thread that made it, until that thread says that it has ended.

    Once is not enough: an error that comes while a finaliser runs is dropped.
    """

    def __init__(self, seconds: float) -> None:
        self._target = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._clock = _own_clock()
        self._seconds = seconds
        self._last_s = self._clock() + seconds

    def start(self) -> None:
        """Bound what this thread computes from here on."""
        threading.Thread(target=self._watch, args=(self._seconds,), daemon=True).start()

    def _watch(self, left_s: float) -> None:
        while not self._ended.wait(max(left_s, AGAIN_S)):
            with self._lock:
                if self._ended.is_set():
                    return
                left_s = self._last_s - self._clock()
                if left_s <= 0:
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


def _own_clock() -> Callable[[], float]:
    """Seconds that this thread has computed, to be read by any; of the wall where that is all."""
    find: Callable[[int], int] | None = getattr(time, "pthread_getcpuclockid", None)
    if find is None:
        return time.monotonic
    clock = find(threading.get_ident())
    return lambda: time.clock_gettime(clock)
