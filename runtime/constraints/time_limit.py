"""A bound on the time that Python code may take in its own thread.

A constraint compiles in the thread of the program that asks for it, so it blocks no other program,
but it must not run for ever. A timer raises an exception inside that thread, between two bytecodes.
No thread is left behind, and nothing has to be sent to another process. The thread's own CPU time
counts, if the platform has it, so that a busy machine refuses nothing.
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


class _OutOfTime(BaseException):  # so that no `except Exception` catches it
    pass


def _drop_remarks() -> Undo:
    """Suppress Python's message about an error raised in a finaliser, where it is dropped."""
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
    """The function's value, computed in this thread in at most so many seconds of CPU time.

    A single call into C, such as a regex match, is not interrupted: the function must be Python
    code, or bound its own time.

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
    """Raises _OutOfTime in the thread that made it, until that thread calls `end`.

    It is raised repeatedly, because Python drops an error raised while a finaliser runs.
    """

    def __init__(self, seconds: float) -> None:
        self._target = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._clock = _own_clock()
        self._seconds = seconds
        self._last_s = self._clock() + seconds

    def start(self) -> None:
        """Bound the time of this thread from here on."""
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
        """Raise no error from here on; a pending asynchronous exception is swallowed here.

        PyThreadState_SetAsyncExc(None) would not do: it leaves CPython 3.11's signal set, and a
        traced thread then loops for ever at its next call.
        """
        while True:
            try:
                with self._lock:
                    self._ended.set()
                for _ in range(100):  # a pending exception is raised at a backward jump
                    pass
                return
            except _OutOfTime:
                continue


def _own_clock() -> Callable[[], float]:
    """A clock of this thread's CPU seconds that any thread can read; else the wall clock."""
    find: Callable[[int], int] | None = getattr(time, "pthread_getcpuclockid", None)
    if find is None:
        return time.monotonic
    clock = find(threading.get_ident())
    return lambda: time.clock_gettime(clock)
