"""The server against the same work in process: seconds, side by side; and what cancelling leaves.

    python benchmarks/serving.py                       # 32 streams on the default model
    python benchmarks/serving.py --cancelled 10000     # requests that are left; pages that stay

The streams read a shared prompt and generate `--tokens` each, greedily. In process they are
branches whose deltas are read; over HTTP one asyncio client reads all event streams, in a process
of its own. Runs alternate; the best of each is reported, and the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from radixlang import Runtime, SamplingParams
from radixlang.serving import ServerConfig, serving

PROMPT = "The old harbour of the town lies below the hill, and every morning the boats come in. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cancelled", type=int, default=0)
    parser.add_argument("--ask", help=argparse.SUPPRESS)  # the client's own process
    args = parser.parse_args()
    if args.ask:
        asyncio.run(_read_all(args.ask, args.streams, args.tokens))
        return
    with Runtime(args.model) as runtime, serving(runtime, ServerConfig(port=0)) as url:
        if args.cancelled:
            report_cancelled(runtime, url, args.cancelled)
        else:
            report_streams(runtime, url, args)


def report_streams(runtime: Runtime, url: str, args: argparse.Namespace) -> None:
    here: list[float] = []
    over_http: list[float] = []
    for _ in range(args.runs + 1):  # the first of each warms up
        here.append(in_process(runtime, args.streams, args.tokens))
        over_http.append(by_client(url, args))
    best_here, best_http = min(here[1:]), min(over_http[1:])
    print(f"{args.streams} streams of {args.tokens} tokens on {runtime.model_name}")
    print(f"in process {best_here:.2f} s, over HTTP {best_http:.2f} s, ratio "
          f"{best_http / best_here:.3f}")  # fmt: skip


def prompts(num: int) -> Sequence[str]:
    return [f"{PROMPT * 8}{number}:" for number in range(num)]


def in_process(runtime: Runtime, num_streams: int, num_tokens: int) -> float:
    """Seconds until every stream was read to its end."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, heal=False)
    runtime.flush_cache()
    begun = time.perf_counter()
    branches = []
    for prompt in prompts(num_streams):
        branch = runtime.new_branch()
        branch.extend(prompt)
        branches.append((branch, branch.generate(params)))
    for _, generation in branches:
        generation.subscribe(lambda _: None)
    for branch, generation in branches:
        generation.result()
        branch.release()
    return time.perf_counter() - begun


def by_client(url: str, args: argparse.Namespace) -> float:
    """Seconds that the client took, without its start."""
    words = [sys.executable, __file__, "--ask", url, "--streams", str(args.streams),
             "--tokens", str(args.tokens)]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(done.stdout)


async def _read_all(url: str, num_streams: int, num_tokens: int) -> None:
    begun = time.perf_counter()
    await asyncio.gather(*(_read(url, prompt, num_tokens) for prompt in prompts(num_streams)))
    print(time.perf_counter() - begun)


async def _read(url: str, prompt: str, num_tokens: int) -> None:
    reader, writer = await _asked(url, {
        "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "cache_salt": str(os.getpid()),
    })  # fmt: skip
    while b"[DONE]" not in await reader.readline():
        pass
    writer.close()


async def _asked(url: str, body: dict[str, Any]) -> tuple[Any, Any]:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
    await writer.drain()
    return reader, writer


def report_cancelled(runtime: Runtime, url: str, num: int) -> None:
    asyncio.run(_leave_all(url, num))
    while runtime.stats().num_branches:
        time.sleep(0.01)
    runtime.flush_cache()
    stats = runtime.stats()
    left = stats.num_pages_total - stats.num_pages_free
    print(f"{num} requests left: {left} pages are not free, {len(runtime.audit())} violations, "
          f"{stats.num_requests} requests reached the engine")  # fmt: skip


async def _leave_all(url: str, num: int) -> None:
    places, chance = asyncio.Semaphore(32), random.Random(0)

    async def leave(number: int) -> None:
        async with places:
            reader, writer = await _asked(url, {
                "prompt": f"{PROMPT}{number % 9}:", "max_tokens": 40, "ignore_eos": True,
                "stream": chance.random() < 0.7, "n": chance.choice((1, 1, 2)),
            })  # fmt: skip
            if chance.random() < 0.5:
                await reader.read(chance.randrange(1, 500))
            await asyncio.sleep(chance.random() * 0.02)
            writer.transport.abort()

    await asyncio.gather(*map(leave, range(num)))


if __name__ == "__main__":
    main()
