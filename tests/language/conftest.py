"""A scripted fake for each test, and no run that outlives its test unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from radixlang.testing import FakeBackend


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeBackend]]:
    """Makes FakeBackends; at the end of the test none may have an unreleased branch."""
    made: list[FakeBackend] = []

    def make(answers: Any = None, **options: Any) -> FakeBackend:
        made.append(FakeBackend(answers, **options))
        return made[-1]

    yield make
    for backend in made:
        assert backend.audit() == []
