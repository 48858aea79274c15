"""After the warm-up no request launches a kernel in a shape that was not compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton.runtime.interpreter import GridExecutor

from radixlang.constraints.specs import Regex
from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams
from tests.conftest import make_tiny_model
from tests.kernels.interp import graph_recorder
from tests.kernels.interp.graph_recorder import InterpretedGpu

Compiled = tuple[str, tuple[tuple[str, Any], ...]]  # a kernel, and what it is compiled for


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[Compiled]:
    """What a GPU would have compiled so far."""
    found: set[Compiled] = set()
    whole = graph_recorder._LAUNCH

    def noted(executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
        choices = {name: value for name, value in kwargs.items()
                   if name.isupper() or name.startswith("num_")}  # fmt: skip
        found.add((executor.fn.__name__, tuple(sorted(choices.items()))))
        whole(executor, *args, **kwargs)

    monkeypatch.setattr(graph_recorder, "_LAUNCH", noted)
    return found


def ids(seed: int, num: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(3, 440, num).tolist()
    return found


def answer(runtime: Runtime) -> None:
    """A prompt, branches with few and with more tokens below it, and every way of sampling."""
    root = runtime.new_branch()
    root.extend(ids(0, 20))
    branches = root.fork(2)
    branches[0].extend(ids(1, 2))
    branches[1].extend(ids(2, 9))
    mask = runtime.compile_constraint(Regex("[a-z]{2}"))
    futures = [
        branches[0].generate(SamplingParams(max_tokens=2, temperature=0.0, heal=False)),
        branches[1].generate(SamplingParams(max_tokens=2, temperature=0.7, heal=False), mask),
    ]
    for future in futures:
        future.result(600)


def test_requests_find_every_kernel_compiled(launched: set[Compiled]) -> None:
    with (
        InterpretedGpu().installed(),
        Runtime(
            make_tiny_model(native=False), num_pages=300, max_running=2, max_batch_tokens=40,
            draft_tokens=0, seed=0,
        ) as runtime,
    ):  # fmt: skip
        warm = set(launched)
        assert runtime.stats().num_requests == 0
        answer(runtime)
    assert launched - warm == set()
    assert {name for name, _ in launched} >= {"tree_attn_partial", "extend_attn", "sample_tokens"}
