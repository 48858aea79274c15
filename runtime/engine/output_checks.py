"""Finished texts judged beside the engine's thread: lark's parse, a schema's check, an ending.

Each bounds its own time, to a second or a few; on the engine's thread every other program would
stand still for as long.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

NUM_THREADS = 4  # so that one slow text does not hold up all others

Judge = Callable[[], str | None]
Told = Callable[[str, BaseException | None], None]


class Verdicts:
    """Runs judges and hands what they say to the engine.

    Args:
        post: has the engine's thread call a function.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._threads: ThreadPoolExecutor | None = None

    def submit(self, judge: Judge, told: Told) -> None:
        """Run a judge; the engine's thread then calls `told` with its text, or its error."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(NUM_THREADS, "radixlang-verdicts")
        self._threads.submit(self._run, judge, told)

    def _run(self, judge: Judge, told: Told) -> None:
        closing, error = "", None
        try:
            closing = judge() or ""
        except Exception as raised:
            error = raised
        self._post(lambda: told(closing, error))

    def close(self) -> None:
        """Drop what waits, and wait for what runs."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
