"""Decode through static buffers: a graph that only runs its callable again stands in for CUDA's.

Between replays nothing reaches that callable but what is in the buffers, which stay where they
were; so equality with eager steps shows that all a real graph needs is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.gpu import backend
from radixlang.kernels.gpu.graph_plan import GraphPlan
from radixlang.kernels.gpu.plan import work_units
from radixlang.kernels.gpu.plan.step_buffer import StepBuffer
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.tools.forests import level_forest
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.forward import cuda_graphs
from radixlang.runtime.forward.cuda_graphs import DecodeGraphs

HEADS, KV_HEADS, DIM = 4, 2, 16


class TinyModel:
    """Two layers of attention, one of them windowed, over embedded tokens."""

    config = SimpleNamespace(windows=(None, 6))

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(50, HEADS + 2 * KV_HEADS, DIM, generator=generator)
        self.addresses: set[tuple[int, ...]] = set()

    def forward(self, input_ids: Tensor, positions: Tensor, plan: object, kv: KVCache) -> Tensor:
        x = self.table[input_ids] + torch.sin(positions.float())[:, None, None]
        if isinstance(plan, GraphPlan):
            views = plan.device_plan(None, 4).views.values()
            read = (input_ids, positions, plan.new_slots, *views)
            self.addresses.add(tuple(tensor.data_ptr() for tensor in read))
        for layer, window in ((0, None), (1, 6)):
            q, k, v = x.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
            out = attend(q, k, v, kv[layer], plan, AttentionOptions(0.25, window=window))  # type: ignore[arg-type]
            x = torch.cat((q + out, k, v), dim=1)
        return x.flatten(1)


def capture(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Warm up, then replay by running again into the tensor of the first run."""
    out = run()

    def replay() -> Tensor:
        return out.copy_(run())

    return replay


def plan_of(batch: TreeBatch) -> AttentionPlan:
    return plan_attention(
        batch, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, backend="triton"
    )


def caches(num_slots: int, owned: int | None = None) -> tuple[KVCache, KVCache]:
    """Two caches of the same random content, NaN in all slots but the first `owned`."""
    pair = tuple(KVCache(num_slots, 2, KV_HEADS, DIM) for _ in range(2))
    for layer in range(2):
        for name in ("k", "v"):
            values = torch.randn(num_slots, KV_HEADS, DIM)
            values[num_slots if owned is None else owned :] = torch.nan
            for cache in pair:
                getattr(cache[layer], name).copy_(values)
    return pair[0], pair[1]


def same_caches(first: KVCache, second: KVCache) -> bool:
    return all(
        torch.allclose(
            getattr(first[layer], name), getattr(second[layer], name), 0, 0, equal_nan=True
        )
        for layer in range(2)
        for name in ("k", "v")
    )


def eager(model: TinyModel, cache: KVCache, ids: Tensor, plan: AttentionPlan) -> Tensor:
    return model.forward(ids, plan.positions, plan, cache)


@pytest.mark.parametrize("branches", [3, 4])  # one padded row, and none
def test_replayed_steps_equal_eager_ones(branches: int) -> None:
    batch = level_forest((1, branches), (30, 5))
    num_slots = 30 + branches * 5
    model, (mine, theirs) = TinyModel(), caches(num_slots + 8 * branches, num_slots)
    graphs = DecodeGraphs(model, mine, capture)  # type: ignore[arg-type]
    plan, plain = plan_of(batch), plan_of(batch)
    for step in range(4):
        ids = torch.arange(branches) + 3 * step
        out = graphs.run(ids.numpy(), plan)
        assert out is not None
        torch.testing.assert_close(out, eager(model, theirs, ids, plain), rtol=0, atol=1e-6)
        slots = num_slots + branches * step + np.arange(branches, dtype=np.int32)
        plan.advance(slots)
        plain.advance(slots)
    assert graphs.captures == 1
    assert len(model.addresses) == 1  # every run read the same buffers
    assert same_caches(mine, theirs)  # padding has written nothing


def test_batches_of_one_bucket_share_a_graph_and_others_do_not() -> None:
    model, (mine, theirs) = TinyModel(), caches(100, 36)
    graphs = DecodeGraphs(model, mine, capture)  # type: ignore[arg-type]
    for branches, captures in ((4, 1), (3, 1), (2, 2), (4, 2)):
        plan = plan_of(level_forest((1, branches), (20, 4)))
        ids = torch.arange(branches)
        out = graphs.run(ids.numpy(), plan)
        assert out is not None
        torch.testing.assert_close(out, eager(model, theirs, ids, plan), rtol=0, atol=1e-6)
        assert graphs.captures == captures


def test_new_tokens_beyond_one_a_branch_run_eagerly() -> None:
    graphs = DecodeGraphs(TinyModel(), caches(100)[0], capture)  # type: ignore[arg-type]
    plan = plan_of(level_forest((1, 2), (20, 4), num_queries=3))
    assert graphs.run(np.arange(6), plan) is None
    assert graphs.captures == 0


def test_workloads_of_two_sizes_are_captured_once_each_however_often_they_alternate() -> None:
    model, (mine, theirs) = TinyModel(), caches(1200, 1100)
    graphs = DecodeGraphs(model, mine, capture)  # type: ignore[arg-type]
    small, large = (level_forest((1, 2), lengths) for lengths in ((20, 4), (1000, 40)))
    ids = torch.arange(2)
    for batch in (small, large, small, large, small):
        plan = plan_of(batch)
        out = graphs.run(ids.numpy(), plan)
        assert out is not None
        torch.testing.assert_close(out, eager(model, theirs, ids, plan), rtol=0, atol=1e-6)
    assert graphs.captures == 2


def test_the_graphs_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 2)
    graphs = DecodeGraphs(TinyModel(), caches(100, 36)[0], capture)  # type: ignore[arg-type]
    for branches, captures in ((1, 1), (2, 2), (1, 2), (4, 3), (1, 3), (2, 4)):
        plan = plan_of(level_forest((1, branches), (20, 4)))
        assert graphs.run(np.arange(branches), plan) is not None
        assert graphs.captures == captures


def test_only_rows_are_copied_while_the_same_branches_decode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int | None] = []
    reserve = 4
    for module in (backend, work_units):
        monkeypatch.setattr(module, "RESERVE", reserve)
    send = StepBuffer.send
    monkeypatch.setattr(
        StepBuffer, "send", lambda self, size=None: (sizes.append(size), send(self, size))[1]
    )
    model, (mine, theirs) = TinyModel(), caches(400, 40)
    graphs = DecodeGraphs(model, mine, capture)  # type: ignore[arg-type]
    plan, plain = (plan_of(level_forest((1, 2), (30, 5))) for _ in range(2))
    for step in range(reserve + 3):
        ids = torch.arange(2) + step
        sizes.clear()
        out = graphs.run(ids.numpy(), plan)
        assert out is not None
        assert sizes == [None if step % reserve == 0 else 12]  # three rows of two int64
        torch.testing.assert_close(out, eager(model, theirs, ids, plain), rtol=0, atol=1e-6)
        slots = 40 + 2 * step + np.arange(2, dtype=np.int32)
        plan.advance(slots)
        plain.advance(slots)
    assert graphs.captures == 1


@pytest.mark.parametrize(
    "failure", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("capture unsupported")]
)
def test_a_failed_capture_is_said_once_and_decoding_goes_on(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    model, (mine, _) = TinyModel(), caches(100, 36)
    attempts: list[int] = []

    def fail(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        attempts.append(len(attempts))
        raise failure

    graphs = DecodeGraphs(model, mine, fail)  # type: ignore[arg-type]
    for branches in (4, 2, 4):
        plan = plan_of(level_forest((1, branches), (20, 4)))
        assert graphs.run(np.arange(branches), plan) is None
    assert attempts == [0]
    assert graphs.is_off
    (said,) = caplog.messages
    assert "CUDA graphs are off" in said
    assert str(failure) in said


def test_a_failed_capture_drops_the_graphs_before_it() -> None:
    model, (mine, _) = TinyModel(), caches(100, 36)
    answers = [capture]

    def once(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if not answers:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return answers.pop()(run)

    graphs = DecodeGraphs(model, mine, once)  # type: ignore[arg-type]
    small, large = (plan_of(level_forest((1, n), (20, 4))) for n in (2, 4))
    assert graphs.run(np.arange(2), small) is not None
    assert graphs.run(np.arange(4), large) is None
    assert graphs.run(np.arange(2), small) is None  # its memory went back
