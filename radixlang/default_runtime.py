"""The runtime that programs use when none is given: set once, or made at first use."""

from __future__ import annotations

import os
import threading

from radixlang.protocol import Backend

_lock = threading.Lock()
_default: Backend | None = None


def _after_fork() -> None:
    """Another thread may have held the lock."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def set_default_runtime(runtime: Backend | None) -> None:
    """Make this the runtime of programs that are given none; None forgets it."""
    global _default
    with _lock:
        _default = runtime


def get_default_runtime() -> Backend:
    """The default runtime; the first call without one loads the default model."""
    global _default
    with _lock:
        if _default is None:
            from radixlang import Runtime

            _default = Runtime()
        return _default
