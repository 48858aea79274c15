"""Backends that every contract test runs on."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from radixlang.remote.remote import Remote
from radixlang.testing import FakeBackend


def make_fake() -> FakeBackend:
    return FakeBackend(piece=3)


class ServedRuntime(Remote):
    """A Remote whose server is here: its runtime tells what it has cached and leaked."""

    def __init__(self, url: str, runtime: Any) -> None:
        super().__init__(url)
        self.runtime = runtime
        self.flush_cache = runtime.flush_cache
        self.reset_stats = runtime.reset_stats

    def stats(self) -> Any:
        return self.runtime.stats()

    def audit(self) -> list[Any]:
        """Violations, once the requests of clients that went away have ended."""
        end = time.monotonic() + 30
        while self.runtime.stats().num_branches and time.monotonic() < end:
            time.sleep(0.005)
        left = self.runtime.stats().num_branches
        return [*self.runtime.audit(), *([f"{left} branches on the server"] if left else [])]


def open_workers(two_workers: Callable[[], Any]) -> Iterator[Any]:
    """Workers that tests share, as starting them takes seconds; closed ones are made again."""
    made = two_workers()
    gc.collect()  # tracebacks of errors that were expected hold branches
    made.flush_cache()
    yield made
    if made.is_closed:
        return
    gc.collect()
    end = time.monotonic() + 30
    while made.stats().num_branches and time.monotonic() < end:
        made.audit()  # gives back what was released meanwhile
        time.sleep(0.005)
    assert made.stats().num_branches == 0
    assert made.audit() == []


@pytest.fixture(params=["fake", "runtime", "remote", "workers"])
def backend(request: pytest.FixtureRequest, make_runtime: Callable[..., Any]) -> Iterator[Any]:
    """A fresh backend; whatever a test leaves behind is a violation."""
    if request.param == "workers":
        yield from open_workers(request.getfixturevalue("two_workers"))
        return
    with ExitStack() as stack:
        made: Any
        if request.param == "fake":
            made = make_fake()
        elif request.param == "runtime":
            made = make_runtime()
        else:
            from radixlang.serving import serving

            runtime = make_runtime()
            made = ServedRuntime(stack.enter_context(serving(runtime)) + "/v1", runtime)
        yield made
        violations = made.audit()
        made.close()
        assert violations == []
