"""Clients that leave, stall or send nonsense harm nobody else, and leave no memory behind."""

from __future__ import annotations

import importlib.util
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

_spec = importlib.util.spec_from_file_location(
    "rude_clients", Path(__file__).with_name("rude_clients.py")
)
assert _spec is not None
assert _spec.loader is not None
rude = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rude)


def settled(runtime: Any) -> None:
    """Wait until nothing runs, and check that every page is free once the cache is flushed."""
    end = time.monotonic() + 60
    while runtime.stats().num_branches and time.monotonic() < end:
        time.sleep(0.01)
    runtime.flush_cache()
    stats = runtime.stats()
    assert (stats.num_branches, stats.num_running, stats.num_waiting) == (0, 0, 0)
    assert stats.num_pages_free == stats.num_pages_total
    assert runtime.audit() == []


@pytest.fixture
def connection(serve: Callable[..., str]) -> Iterator[Callable[..., socket.socket]]:
    """Opens sockets to a server."""
    opened: list[socket.socket] = []

    def connect(url: str) -> socket.socket:
        address = urlsplit(url)
        opened.append(socket.create_connection((address.hostname, address.port), timeout=60))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def test_a_thousand_that_leave(serve: Callable[..., str], make_runtime: Any) -> None:
    runtime = make_runtime(debug=False)
    rude.leave_all(serve(runtime), 1000)
    settled(runtime)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_generation(
    serve: Callable[..., str], make_runtime: Any, connection: Any, stream: bool
) -> None:
    runtime = make_runtime()
    client = connection(serve(runtime))
    body = {"prompt": "The town", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    client.sendall(rude.request_bytes("/v1/completions", body))
    while not runtime.stats().num_generated_tokens:
        time.sleep(0.005)
    client.close()
    settled(runtime)
    assert runtime.stats().num_generated_tokens < 2000


def test_a_slow_reader_holds_nobody_up(
    serve: Callable[..., str], make_runtime: Any, connection: Any
) -> None:
    """Its generations end and are freed although it reads nothing; others are answered."""
    runtime = make_runtime(debug=False)
    url = serve(runtime)
    slow = connection(url)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    body = {"prompt": "The town", "max_tokens": 150, "n": 16, "ignore_eos": True, "stream": True}
    slow.sendall(rude.request_bytes("/v1/completions", body))
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", timeout=60) as api:
        reply = api.completions.create(model="tiny", prompt="The moon", max_tokens=4)
        assert reply.choices[0].finish_reason in ("length", "stop")
    settled(runtime)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    received = b""
    while b"[DONE]" not in received:
        received += slow.recv(1 << 16)
    assert received.count(b'"finish_reason":') == received.count(b'"index":')


def test_noise_is_refused(serve: Callable[..., str], fake: Any, connection: Any) -> None:
    url = serve(fake, body_timeout_s=0.5)
    chance = random.Random(3)
    whole = rude.request_bytes("/v1/chat/completions", {"messages": [{"role": "user"}]})
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        client = connection(url)
        client.sendall(bytes(data))
        client.shutdown(socket.SHUT_WR)
        client.settimeout(60)
        while client.recv(1 << 16):
            pass
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", timeout=60) as api:
        assert api.completions.create(model="fake", prompt="a").choices


def test_a_body_that_never_comes_is_given_up(
    serve: Callable[..., str], fake: Any, connection: Any
) -> None:
    client = connection(serve(fake, body_timeout_s=0.2))
    client.sendall(rude.request_bytes("/v1/completions", {"prompt": "a"})[:-3])
    assert b"408" in client.recv(1 << 16)


def test_running_requests_end_before_the_server(
    serve: Callable[..., str], make_runtime: Any
) -> None:
    from radixlang.serving.config import ServerConfig
    from radixlang.serving.server import serving

    runtime = make_runtime()
    found: list[Any] = []
    with serving(runtime, ServerConfig(port=0)) as url:
        api = openai.OpenAI(base_url=f"{url}/v1", api_key="x", timeout=60, max_retries=0)

        def ask() -> None:
            asked = {"model": "tiny", "prompt": "The town", "max_tokens": 200}
            found.append(api.completions.create(**asked, extra_body={"ignore_eos": True}))

        thread = threading.Thread(target=ask)
        thread.start()
        while not runtime.stats().num_generated_tokens:
            time.sleep(0.005)
    thread.join()
    api.close()
    assert found[0].usage.completion_tokens == 200
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=5)
