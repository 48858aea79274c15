"""An event loop on a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from radixlang.errors import RuntimeClosedError

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines and callbacks for other threads, until it is closed."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more work."""
        return self.loop.is_closed() or not self._thread.is_alive()

    def call(self, coroutine: Coroutine[object, object, Result]) -> Result:
        """The result of a coroutine; waits for it."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError as error:
            coroutine.close()
            raise RuntimeClosedError("the backend was closed") from error
        return future.result()

    def post(self, work: Callable[[], object]) -> bool:
        """Run a function on the loop; False if it is closed."""
        try:
            self.loop.call_soon_threadsafe(work)
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        if self.post(self.loop.stop) and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            while left := asyncio.all_tasks(self.loop):  # ended ones may have started others
                self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
