"""Progress bars at a terminal and in a notebook, after half a second; elsewhere there are none.

The runtime uses this module too, so that all bars look alike.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

Item = TypeVar("Item")

DELAY_S = 0.5  # seconds before a bar appears
_LOOK_EVERY_S = 0.1
_TELL_EVERY_S = 0.5
_NOTEBOOK_SHELLS = {"ZMQInteractiveShell", "Shell"}  # Jupyter's and its kin; Colab's


# tqdm's two classes share no type that says what a bar can do


def row_bar(num_rows: int, *, wanted: bool | None = None) -> Any:
    """A bar of tqdm to `update(1)` and `close()`.

    Args:
        wanted: None shows it at a terminal or in a notebook; True always, False never.
    """
    return _bar(None, num_rows, "row", wanted)


def each(items: Iterable[Item], what: str, total: int, unit: str) -> Iterator[Item]:
    """The items, with a bar that counts them as they are consumed."""
    with _bar(what, total, unit) as bar:
        for item in items:
            yield item
            bar.update(1)


def awaited(
    future: Future[Item], what: str, total: int, unit: str, done: Callable[[], int]
) -> Item:
    """The future's result; until then a bar shows the counter `done()`."""
    if is_watched():
        begin = done()
        with _bar(what, total, unit) as bar:
            while not future.done():
                with suppress(FutureTimeoutError):
                    future.exception(timeout=_LOOK_EVERY_S)
                bar.update(min(total, done() - begin) - bar.n)
    return future.result()


@contextmanager
def doing(what: str) -> Iterator[None]:
    """A line that says what is being done, and for how long: for a step that counts nothing."""
    if not is_watched():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_tell, args=(what, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tell(what: str, ended: threading.Event) -> None:
    if ended.wait(DELAY_S):
        return
    with _kind_of_bar()(desc=what, leave=False, bar_format="{desc} … {elapsed}") as line:
        while not ended.wait(_TELL_EVERY_S):
            line.refresh()


def is_watched() -> bool:
    """Whether stderr is shown as it is written: at a terminal, or in a notebook."""
    return sys.stderr.isatty() or in_notebook()


def in_notebook() -> bool:
    """Whether this process runs the cells of a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ in _NOTEBOOK_SHELLS


def _bar(what: str | None, total: int, unit: str, wanted: bool | None = None) -> Any:
    shown = is_watched() if wanted is None else wanted
    return _kind_of_bar()(
        desc=what, total=total, unit=unit, leave=bool(wanted), delay=0 if wanted else DELAY_S,
        disable=not shown,
    )  # fmt: skip


def _kind_of_bar() -> Any:
    """The notebook's bar if its widgets are installed, else the bar of text."""
    if in_notebook() and importlib.util.find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm as widget

        return widget
    from tqdm import tqdm

    return tqdm
