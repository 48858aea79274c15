"""Progress bars: for a person at a terminal, after half a second; nothing at all elsewhere.

The runtime shows its own with this too: the one module of the language, beside the seam, that it
knows, so that all bars look alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

Item = TypeVar("Item")

DELAY_S = 0.5  # what is done sooner shows no bar
_LOOK_EVERY_S = 0.1


def row_bar(num_rows: int, *, wanted: bool | None = None) -> Any:
    """A bar of tqdm to `update(1)` and `close()`.

    Args:
        wanted: None shows it on a terminal and nowhere else; True and False say so themselves.
    """
    return _bar(None, num_rows, "row", wanted)


def each(items: Iterable[Item], what: str, total: int, unit: str) -> Iterator[Item]:
    """The items, with a bar that moves on as they are taken."""
    with _bar(what, total, unit) as bar:
        for item in items:
            yield item
            bar.update(1)


def awaited(
    future: Future[Item], what: str, total: int, unit: str, done: Callable[[], int]
) -> Item:
    """The future's result; until it is there, a bar follows the counter `done()`."""
    if sys.stderr.isatty():
        begin = done()
        with _bar(what, total, unit) as bar:
            while not future.done():
                wait([future], timeout=_LOOK_EVERY_S)
                bar.update(min(total, done() - begin) - bar.n)
    return future.result()


def _bar(what: str | None, total: int, unit: str, wanted: bool | None = None) -> Any:
    from tqdm import tqdm

    return tqdm(
        desc=what, total=total, unit=unit, leave=bool(wanted), delay=0 if wanted else DELAY_S,
        disable=None if wanted is None else not wanted,
    )  # fmt: skip
