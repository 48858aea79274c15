"""oneDNN keeps no more primitives than it is told to, unless the environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from radixlang.runtime.process.onednn import CAPACITY, MAX_PRIMITIVES, bound_primitives

MULTIPLY = f"""
import torch
from radixlang.runtime.process.onednn import bound_primitives
bound_primitives()
product = torch.ops.onednn.qlinear_pointwise
weight = torch.ops.onednn.qlinear_prepack(torch.ones(32, 64, dtype=torch.int8), None)
zeros = torch.zeros(32, dtype=torch.int32)
for num_rows in (*range(1, {MAX_PRIMITIVES} + 8), {MAX_PRIMITIVES} + 7, 1):
    rows = torch.ones(num_rows, 64, dtype=torch.int8)
    out = product(rows, 1.0, 0, weight, torch.ones(32), zeros, None, 1.0, 0, torch.float32,
                  "none", [], "")
    assert (out == 64).all()
"""


def test_what_was_long_not_used_is_dropped() -> None:
    environment = {name: value for name, value in os.environ.items() if name != CAPACITY}
    done = subprocess.run(
        [sys.executable, "-c", MULTIPLY], env=environment | {"ONEDNN_VERBOSE": "profile_create"},
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    made = [line.split("create:")[1].split(",")[0] for line in done.stdout.splitlines()
            if "create:" in line and ",matmul," in line]  # fmt: skip
    assert made[-2:] == ["cache_hit", "cache_miss"]


def test_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPACITY, "7")
    bound_primitives()
    assert os.environ[CAPACITY] == "7"
