"""Fixtures for attention tests: fresh tensors hold NaN, as memory nobody wrote may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def nan_filled_memory() -> Iterator[None]:
    """torch.empty gives NaN, so that a result read before it is written cannot hide."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
