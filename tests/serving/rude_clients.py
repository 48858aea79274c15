"""Clients that go away, over plain sockets."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any
from urllib.parse import urlsplit


def request_bytes(path: str, body: dict[str, Any]) -> bytes:
    """A POST as bytes."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def leave_all(url: str, num: int, *, at_once: int = 25, seed: int = 0) -> None:
    """Send `num` requests and leave each at a random moment: inside the request, after it, or
    inside the reply."""
    asyncio.run(_leave_all(url, num, at_once, random.Random(seed)))


async def _leave_all(url: str, num: int, at_once: int, chance: random.Random) -> None:
    places = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with places:
            await _leave(url, number, chance)

    await asyncio.gather(*(one(number) for number in range(num)))


async def _leave(url: str, number: int, chance: random.Random) -> None:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    body = {"prompt": f"The town {number % 7} of {number}", "max_tokens": 60,
            "n": chance.choice((1, 1, 3)), "stream": chance.random() < 0.7,
            "ignore_eos": True}  # fmt: skip
    data = request_bytes("/v1/completions", body)
    when = chance.choice(("inside", "after", "reading"))
    writer.write(data[: chance.randrange(1, len(data))] if when == "inside" else data)
    await writer.drain()
    if when == "reading":
        await asyncio.wait_for(reader.read(chance.randrange(1, 600)), 60)
    elif when == "after":
        await asyncio.sleep(chance.random() * 0.02)
    writer.transport.abort()
