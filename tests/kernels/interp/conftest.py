"""Triton's interpreter: a process of its own, because kernels are jitted at import.

    TRITON_INTERPRET=1 pytest tests/kernels/interp

Without the variable nothing here is collected, and the summary says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETING else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not INTERPRETING:
        terminalreporter.write_line(
            "tests/kernels/interp ran not here: TRITON_INTERPRET=1 pytest tests/kernels/interp"
        )


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test's values, and so its rounding errors, do not depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def nan_filled_memory() -> Iterator[None]:
    """torch.empty gives NaN: partials, outputs and padding that nobody writes must not matter."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
