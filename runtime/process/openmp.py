"""Ends the OpenMP workers of a thread that has finished computing.

GNU's OpenMP keeps a team of workers for every thread that ever computed in parallel. Once a
process has more of them than cores, none waits awake for its next task: each is woken through the
system, for some ten thousand tasks a second. On two cores a step of SmolLM2 with 16 branches took
98 ms with the idle team of the thread that had loaded the model, and 63 ms without.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from radixlang.runtime.process.switched_off import is_off

_PAUSE_HARD = 2  # omp_pause_hard, OpenMP 5.2, section 18.6
P = ParamSpec("P")
T = TypeVar("T")


def end_team() -> None:
    """End the workers of the calling thread; its next parallel call makes new ones.

    Does nothing under other OpenMP libraries, which wake no slower for their number.
    """
    pause = _pause()
    if pause is not None and not is_off("openmp"):
        pause(_PAUSE_HARD)


def leaves_no_team(function: Callable[P, T]) -> Callable[P, T]:
    """For functions that compute on their caller's thread while an engine has its own."""

    @wraps(function)
    def wrapped(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        finally:
            end_team()

    return wrapped


@cache
def _pause() -> Callable[[int], int] | None:
    """omp_pause_resource_all of the loaded libgomp, whichever file it is."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
        path = next(line.split()[-1] for line in lines if "libgomp" in line)
        found: Callable[[int], int] = ctypes.CDLL(path).omp_pause_resource_all
    except (OSError, StopIteration, AttributeError):
        return None
    return found
