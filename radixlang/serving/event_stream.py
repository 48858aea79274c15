"""Replies that end with their client: streams of server-sent events, and answers in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from radixlang.errors import CancelledError
from radixlang.records.json_text import dump_json

Result = TypeVar("Result")
DONE = "data: [DONE]\n\n"


def event(data: object) -> str:
    """One server-sent event."""
    return f"data: {dump_json(data)}\n\n"


class EventStream(StreamingResponse):
    """A stream of events.

    Args:
        events: the events as text.
        close: called once when the stream ends, in whatever way.
    """

    def __init__(self, events: AsyncIterator[str], close: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"  # a proxy must not hold events back
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled if the client goes away first.

    Raises:
        CancelledError: it has gone; nobody reads the reply.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise CancelledError("the client has gone")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
