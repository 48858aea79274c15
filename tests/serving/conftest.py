"""Servers on the loopback address that end with their test, and clients of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from radixlang.serving.config import ServerConfig
from radixlang.serving.server import serving
from radixlang.testing import FakeBackend
from tests.serving.tool_families import Family

Client = Callable[..., openai.OpenAI]


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves a backend with settings; returns the address."""
    with contextlib.ExitStack() as open_servers:

        def start(backend: Any, **settings: Any) -> str:
            config = ServerConfig(port=0, **settings)
            return open_servers.enter_context(serving(backend, config))

        yield start


@pytest.fixture
def client(serve: Callable[..., str]) -> Iterator[Client]:
    """OpenAI's own client of a backend that is served for it."""
    with contextlib.ExitStack() as open_clients:

        def start(backend: Any, key: str = "none", **settings: Any) -> openai.OpenAI:
            url = serve(backend, **settings)
            made = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)
            return open_clients.enter_context(made)

        yield start


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    """A scripted backend; a branch that is not released at the end is a leak."""
    with FakeBackend() as backend:
        yield backend
        assert backend.audit() == []


@pytest.fixture
def family() -> Iterator[Callable[..., Family]]:
    """Makes backends of a family; a branch that is not released is a leak."""
    made: list[Family] = []

    def make(*args: Any, **options: Any) -> Family:
        made.append(Family(*args, **options))
        return made[-1]

    yield make
    for each in made:
        assert each.audit() == []
        each.close()
