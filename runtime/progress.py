"""Progress bars: for a person at a terminal, after half a second; nothing at all elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")

DELAY_S = 0.5  # what is done sooner shows no bar
_LOOK_EVERY_S = 0.1


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


@contextmanager
def bars_of_transformers() -> Iterator[None]:
    """transformers draws its bars anywhere; within this it draws them at a terminal only."""
    from transformers.utils import logging as theirs

    logging: Any = theirs
    quiet = logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    if quiet:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if quiet:
            logging.enable_progress_bar()


def _bar(what: str, total: int, unit: str) -> Any:
    from tqdm import tqdm

    return tqdm(desc=what, total=total, unit=unit, leave=False, delay=DELAY_S, disable=None)
