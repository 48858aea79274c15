"""An actor without a thread: the first thread that posts to an idle mailbox runs its commands.

The program's thread posts when it flushes nodes, the backend's when a result arrives. Commands run
one at a time and never wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Command = Callable[[], None]


class Mailbox:
    """Commands of a run, one at a time. `take(command)` runs one, and the work that it enables."""

    def __init__(self, take: Callable[[Command], None]) -> None:
        self._take = take
        self._inbox: deque[Command] = deque()
        self._driver: dict[str, object] = {}  # the call of `post` that drains, if there is one

    def post(self, command: Command) -> None:
        """Run a command: here if the mailbox is idle, else by the call that is draining it.

        The draining call is recorded in one atomic step, so that an interrupt at any place here
        leaves the mailbox idle.
        """
        self._inbox.append(command)
        driver, me = self._driver, object()
        try:
            while self._inbox and driver.setdefault("now", me) is me:
                while self._inbox:
                    self._take(self._inbox.popleft())
                del driver["now"]
        finally:
            if driver.get("now") is me:
                del driver["now"]
