"""Backends that every contract test runs on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from radixlang.testing import FakeBackend


def make_fake() -> FakeBackend:
    return FakeBackend(piece=3)


BACKENDS = {"fake": make_fake}


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A fresh backend; whatever a test leaves behind is a violation."""
    made = BACKENDS[request.param]()
    yield made
    violations = made.audit()
    made.close()
    assert violations == []
