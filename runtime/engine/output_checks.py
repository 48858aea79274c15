"""Validation of finished texts off the engine's thread: lark's parse, a schema's check, an ending.

Each check takes at most a few seconds; on the engine's thread every other program would wait for
it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

NUM_THREADS = 4  # so that one slow text does not delay all others

Judge = Callable[[], str | None]
Told = Callable[[str, BaseException | None], None]


class Verdicts:
    """Runs checks on threads and passes their results to the engine.

    Args:
        post: lets the engine's thread call a function.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._threads: ThreadPoolExecutor | None = None

    def submit(self, judge: Judge, told: Told) -> None:
        """Run a check; the engine's thread then calls `told` with its text, or its error."""
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
        """Drop queued checks, and wait for running ones."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
