"""The start compiles and captures: decode steps of requests find their graphs there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from radixlang import progress
from radixlang.kernels.gpu import launch
from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams
from tests.runtime.gpu.meta_device import Crossings, meta_engine
from tests.runtime.gpu.test_crossings import meta_model


@pytest.fixture
def crossings() -> Iterator[Crossings]:
    with meta_engine() as found:
        yield found


def opened(crossings: Crossings, **options: Any) -> Runtime:
    with crossings:
        return Runtime(meta_model(), num_pages=2000, compaction=False, **options)


def decode(runtime: Runtime, crossings: Crossings, num: int) -> None:
    runtime.core.call(crossings.__enter__)
    branches = [runtime.new_branch() for _ in range(num)]
    for index, branch in enumerate(branches):
        branch.extend([5, 7, 9 + index])
    params = SamplingParams(max_tokens=3, ignore_eos=True, heal=False)
    for future in [branch.generate(params) for branch in branches]:
        future.result(60)
    runtime.core.call(lambda: crossings.__exit__(None, None, None))


def captures(runtime: Runtime) -> int:
    graphs = runtime.core.runner.graphs
    assert graphs is not None
    return graphs.captures


def test_decode_steps_of_every_bucket_are_captured_before_the_first_request(
    crossings: Crossings,
) -> None:
    with opened(crossings, max_running=40) as runtime:
        assert captures(runtime) == 8  # 1, 2, 4, 8, 16, 24, 32, 48
        for num in (1, 3, 40):
            decode(runtime, crossings, num)
        assert captures(runtime) == 8


def test_it_can_be_turned_off(crossings: Crossings) -> None:
    with opened(crossings, warm_up=False) as runtime:
        assert captures(runtime) == 0
        decode(runtime, crossings, 2)
        assert captures(runtime) >= 1


def test_nodes_in_8_bits_have_graphs_of_their_own(crossings: Crossings) -> None:
    with opened(crossings, max_running=2, cold_tokens=64) as runtime:
        assert captures(runtime) == 4


def test_without_graphs_the_kernels_are_compiled_all_the_same(crossings: Crossings) -> None:
    with opened(crossings, cuda_graphs=False) as runtime:
        assert runtime.core.runner.graphs is None
    assert crossings.num_launches["attend_triton"] > 0
    assert crossings.num_launches["sample"] == 2


def test_a_bar_tells_how_far_it_is(
    crossings: Crossings,
    monkeypatch: pytest.MonkeyPatch,
    shown_on_terminal: Callable[[Callable[[], Any]], str],
) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    assert "warming up" in shown_on_terminal(lambda: opened(crossings, max_running=2).close())


def test_memory_that_runs_out_ends_it_early(
    crossings: Crossings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    whole, calls = launch.attend_triton, []

    def fails_at_last(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return full() if len(calls) == 20 else whole(*args, **kwargs)

    monkeypatch.setattr(launch, "attend_triton", fails_at_last)
    with opened(crossings) as runtime:
        assert len(calls) == 20
        decode(runtime, crossings, 2)


def test_a_pool_that_is_small_is_warmed_up_as_far_as_it_goes(crossings: Crossings) -> None:
    with crossings:
        runtime = Runtime(meta_model(), num_pages=16, compaction=False)
    assert captures(runtime) == 4  # of up to 8 branches below 8 tokens
    runtime.close()
