"""Objects that belong to one process: after a fork the child has the objects but no threads."""

from __future__ import annotations

import os

from radixlang.errors import ForkedError


class ProcessOwner:
    """Remembers the process in which an object was made.

    Args:
        what: the object's description, for the error.
    """

    __slots__ = ("pid", "what")

    def __init__(self, what: str) -> None:
        self.pid = os.getpid()
        self.what = what

    @property
    def is_here(self) -> bool:
        """Whether this is that process."""
        return os.getpid() == self.pid

    def error(self) -> ForkedError:
        """The error of using it in a child of that process."""
        return ForkedError(
            f"{self.what} was made in process {self.pid}, and this is process {os.getpid()}, "
            "forked from it: the threads that would answer are not here. Make a runtime in this "
            "process, and start processes that load a model by spawn: "
            'multiprocessing.get_context("spawn")'
        )

    def check(self) -> None:
        """Raise a ForkedError in any other process."""
        if not self.is_here:
            raise self.error()
