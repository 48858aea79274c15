"""The stubbed GPU attends as the float64 reference does, and the runtime gives the CPU's tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.gpu import launch, sample_tokens
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.reference.attention import attend_reference
from radixlang.kernels.tools.forests import new_slots_of, random_forest
from radixlang.runtime.process import device as devices
from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams
from tests.conftest import make_tiny_model
from tests.runtime.gpu import stubbed_gpu


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    stubbed_gpu.stub(monkeypatch)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("max_queries", [1, 60])
@pytest.mark.parametrize("window", [None, 20])
def test_attention_is_the_references(
    stubbed: None, seed: int, max_queries: int, window: int | None
) -> None:
    batch = random_forest(np.random.default_rng(seed), max_queries=max_queries)
    num_slots = int(max(slots.max(initial=0) for slots in batch.segment_slots)) + 1
    layer = LayerKV(torch.randn(num_slots, 2, 16), torch.randn(num_slots, 2, 16))
    num = int(batch.branch_num_queries.sum())
    q, k, v = torch.randn(num, 4, 16), torch.randn(num, 2, 16), torch.randn(num, 2, 16)
    options = AttentionOptions(0.25, window=window)
    plan = plan_attention(batch, num_heads=4, num_kv_heads=2, head_dim=16, backend="triton")
    found = attend(q, k, v, layer, plan, options)
    assert torch.equal(layer.k[torch.from_numpy(new_slots_of(batch).astype(np.int64))], k)
    expected = attend_reference(q, layer.k, layer.v, batch, options)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6)


def test_a_runtime_gives_the_cpus_tokens_by_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers() -> list[Any]:
        with Runtime(
            make_tiny_model(native=False), num_pages=512, seed=0, draft_tokens=0, warm_up=False
        ) as runtime:
            root = runtime.new_branch()
            root.extend(list(range(10, 60)))
            futures = []
            for index, branch in enumerate(root.fork(3)):
                branch.extend([7, 30 + index])
                params = SamplingParams(max_tokens=8, temperature=0.8 * index, ignore_eos=True)
                futures.append(branch.generate(params))
            return [future.result(120).token_ids for future in futures]

    on_cpu = answers()
    stubbed_gpu.stub(monkeypatch)
    monkeypatch.setitem(devices.KINDS, "cpu", lambda device: stubbed_gpu.StubbedGpu())
    assert answers() == on_cpu


def test_the_stubs_stand_where_the_kernels_are_launched(stubbed: None) -> None:
    assert launch.attend_triton is stubbed_gpu.attend
    assert sample_tokens.sample is stubbed_gpu.sample
