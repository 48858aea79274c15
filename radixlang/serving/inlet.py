"""From a backend's thread to an event loop: one wake-up for many items."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Inlet(Generic[Item]):
    """A queue that any thread fills and one task of an event loop empties."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._is_told = False
        self._event = asyncio.Event()

    def put(self, item: Item) -> None:
        """Add an item; never blocks."""
        self._items.append(item)
        if not self._is_told:
            self._is_told = True
            with suppress(RuntimeError):  # the loop has ended, and its readers with it
                self._loop.call_soon_threadsafe(self._event.set)

    async def take(self) -> list[Item]:
        """All items since the last call, at least one; waits for it."""
        while True:
            await self._event.wait()
            self._event.clear()
            self._is_told = False  # before reading: what is put from now on tells again
            items: list[Item] = []
            while self._items:
                items.append(self._items.popleft())
            if items:
                return items
