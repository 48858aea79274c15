"""A change to the whole process that lasts while at least one thread needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Undo = Callable[[], None]


class WhileAsked:
    """A context manager for any number of threads at once.

    Args:
        change: makes the change for the first thread, and returns a function that undoes it after
            the last one.
    """

    def __init__(self, change: Callable[[], Undo]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._num_asking = 0
        self._undo: Undo = lambda: None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the change until the end of the block."""
        with self._lock:
            if not self._num_asking:
                self._undo = self._change()
            self._num_asking += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_asking -= 1
                if not self._num_asking:
                    self._undo()
