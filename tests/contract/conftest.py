"""Backends that every contract test runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from radixlang.testing import FakeBackend


def make_fake() -> FakeBackend:
    return FakeBackend(piece=3)


@pytest.fixture(params=["fake", "runtime"])
def backend(request: pytest.FixtureRequest, make_runtime: Callable[..., Any]) -> Iterator[Any]:
    """A fresh backend; whatever a test leaves behind is a violation."""
    made = make_fake() if request.param == "fake" else make_runtime()
    yield made
    violations = made.audit()
    made.close()
    assert violations == []
