"""The runtime that programs use if none is given: set once, or made at first use."""

from __future__ import annotations

import inspect
import os
import threading

from radixlang.errors import ParameterError
from radixlang.progress import doing
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
    """Make this the runtime of programs that are given none; None unsets it."""
    global _default
    check_runtime(runtime)
    with _lock:
        _default = runtime


def runtime_or_default(runtime: Backend | None) -> Backend:
    """The runtime that was given, or the default one.

    Raises:
        ParameterError: the argument is not a runtime.
    """
    check_runtime(runtime)
    return runtime or get_default_runtime()


def check_runtime(runtime: object) -> None:
    """Raise a ParameterError unless it is a backend, or None."""
    if runtime is None or (not isinstance(runtime, type) and hasattr(runtime, "new_branch")):
        return
    if inspect.isclass(runtime):
        said = f"the class {runtime.__name__}; make one first: runtime={runtime.__name__}(…)"
    else:
        said = f"{runtime!r}; load the model first: runtime=radixlang.Runtime({runtime!r})"
        if not isinstance(runtime, str):
            said = f"{runtime!r}; give a radixlang.Runtime(…)"
    raise ParameterError(f"runtime must be a Runtime or another backend, got {said}")


def get_default_runtime() -> Backend:
    """The default runtime; the first call without one loads the default model."""
    global _default
    with _lock:
        if _default is None:
            with doing("importing torch"):
                from radixlang.runtime.runtime import Runtime

            _default = Runtime()
        return _default
