"""The view of a running run: a file that is rewritten, or a cell that is updated."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from radixlang.errors import ParameterError
from radixlang.execution.run import Run
from radixlang.progress import in_notebook
from radixlang.views.page import run_to_cell, run_to_page

_LOOK_EVERY_S = 0.1
_MOST_OF_THE_TIME = 5  # drawing a large run takes at most a fifth of the time
_AT_EXIT_S = 5.0
_living: weakref.WeakSet[LiveView] = weakref.WeakSet()


class LiveView:
    """Redraws a run until it has ended, on a separate thread."""

    def __init__(self, run: Run, draw: Callable[[Run], None], every_s: float) -> None:
        self._run, self._draw, self._every_s = run, draw, every_s
        self._thread = threading.Thread(target=self._follow, name="radixlang-live", daemon=True)
        _living.add(self)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the run has ended and its last view is drawn; `timeout` is in seconds."""
        self._thread.join(timeout)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self._run.finished

    def _follow(self) -> None:
        try:
            while not self._run.finished:
                began = time.monotonic()
                self._draw(self._run)
                took = time.monotonic() - began
                self._pause(max(self._every_s, _MOST_OF_THE_TIME * took))
            self._draw(self._run)
        except Exception as error:
            said = f"the live view of {self._run.name} ended with {type(error).__name__}: {error}"
            warnings.warn(f"{said}; the run itself goes on", RuntimeWarning, stacklevel=2)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._run.finished and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)


@atexit.register
def _draw_the_last() -> None:
    """Draw the last view of runs that end right before their process does."""
    for each in list(_living):
        if each.is_over:
            each.wait(_AT_EXIT_S)


def follow(run: Run, path: str | os.PathLike[str] | None, every_s: float) -> LiveView:
    """Draw a run while it goes on: to a file, or, without a path, to a cell of a notebook.

    Raises:
        ParameterError: there is no path outside a notebook, or its folder does not exist.
    """
    if path is not None:
        file = Path(path)
        if not file.parent.is_dir():
            raise ParameterError(f"{file.parent} is no folder; make it, or give another file")
        return LiveView(run, lambda run: write_page(run, file), every_s)
    if not in_notebook():
        raise ParameterError("live() draws into a cell of a notebook; elsewhere give it a file")
    return LiveView(run, _cell_drawer(), every_s)


def write_page(run: Run, path: str | os.PathLike[str]) -> None:
    """Replace a file by a run's page; a reader sees the whole old or the whole new one."""
    file = Path(path)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_text(run_to_page(run), encoding="utf-8", errors="replace")
        part.replace(file)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _cell_drawer() -> Callable[[Run], None]:
    from IPython.display import HTML, display

    handle: Any = display(HTML(""), display_id=True)  # IPython may be missing
    return lambda run: handle.update(HTML(run_to_cell(run)))
