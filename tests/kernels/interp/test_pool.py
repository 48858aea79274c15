"""append_kv, int8 segments and advancing in device memory, in the interpreter."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.gpu import backend
from radixlang.kernels.gpu import launch as gpu
from radixlang.kernels.gpu.graph_plan import DecodeStep, GraphPlan, bucket_of
from radixlang.kernels.gpu.plan import work_units as units
from radixlang.kernels.gpu.plan.device_plan import CapacityError
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import attend_reference
from radixlang.kernels.tools.forests import level_forest, poisoned_pool, random_forest


def cold_pool(k: torch.Tensor, v: torch.Tensor) -> LayerKV:
    planes = [torch.zeros(k.shape, dtype=torch.int8) for _ in range(2)]
    scales = [torch.full(k.shape[:2], torch.nan) for _ in range(2)]
    return LayerKV(k, v, planes[0], planes[1], scales[0], scales[1])


@pytest.mark.parametrize("dim", [16, 80])
def test_append_writes_its_slots_and_nothing_else(dim: int) -> None:
    k_pool, v_pool = torch.full((9, 2, dim), torch.nan), torch.full((9, 2, dim), torch.nan)
    k, v = torch.randn(2, 3, 2, dim)
    gpu.append(LayerKV(k_pool, v_pool), torch.tensor([7, -1, 2]), k, v)
    for pool, new in ((k_pool, k), (v_pool, v)):
        assert torch.equal(pool[[7, 2]], new[[0, 2]])
        assert torch.isnan(pool[[0, 1, 3, 4, 5, 6, 8]]).all()


def test_append_reads_slices_of_a_fused_projection() -> None:
    fused = torch.randn(3, 6, 16)
    pool = LayerKV(torch.zeros(4, 2, 16), torch.zeros(4, 2, 16))
    gpu.append(pool, torch.tensor([1, 2, 3]), fused[:, 2:4], fused[:, 4:6])
    assert torch.equal(pool.k[1:], fused[:, 2:4])
    assert torch.equal(pool.v[1:], fused[:, 4:6])


def test_int8_is_the_nearest_of_its_scale() -> None:
    pool = cold_pool(torch.zeros(4, 2, 16), torch.zeros(4, 2, 16))
    k, v = torch.randn(2, 3, 2, 16)
    k[1, 0] = 0.0
    gpu.append(pool, torch.tensor([0, 1, 2]), k, v, quantize=True)
    assert pool.k_int8 is not None
    assert pool.k_scale is not None
    torch.testing.assert_close(pool.k_scale[:3], k.abs().amax(-1) / 127)
    back = pool.k_int8[:3] * pool.k_scale[:3, :, None]
    assert ((back - k).abs() <= pool.k_scale[:3, :, None] * 0.5001).all()
    assert (back[1, 0] == 0).all()


def test_append_without_planes_is_refused() -> None:
    pool = LayerKV(torch.zeros(4, 2, 16), torch.zeros(4, 2, 16))
    with pytest.raises(ValueError, match="no int8 planes"):
        gpu.append(pool, torch.tensor([0]), *torch.zeros(2, 1, 2, 16), quantize=True)


def half_cold(
    batch: TreeBatch, kv_heads: int, dim: int
) -> tuple[LayerKV, torch.Tensor, torch.Tensor]:
    """A pool with the cold segments in its int8 planes only, and what all of it stands for."""
    assert batch.segment_quantized is not None
    k_pool, v_pool = poisoned_pool(batch, kv_heads, dim)
    pool = cold_pool(k_pool, v_pool)
    mixed_k, mixed_v = k_pool.clone(), v_pool.clone()
    for segment in np.flatnonzero(batch.segment_quantized).tolist():
        slots = torch.from_numpy(batch.segment_slots[segment]).long()
        if len(slots):
            gpu.append(pool, slots, k_pool[slots], v_pool[slots], quantize=True)
            assert pool.k_int8 is not None
            assert pool.k_scale is not None
            assert pool.v_int8 is not None
            assert pool.v_scale is not None
            mixed_k[slots] = pool.k_int8[slots] * pool.k_scale[slots, :, None]
            mixed_v[slots] = pool.v_int8[slots] * pool.v_scale[slots, :, None]
            k_pool[slots] = v_pool[slots] = torch.nan  # a cold segment's exact slots are free
    return pool, mixed_k, mixed_v


def cold_error(
    batch: TreeBatch,
    *,
    group: int = 3,
    dim: int = 16,
    deterministic: bool = False,
    **choice: float,
) -> float:
    """Largest error against the dequantised reference, relative to the largest value."""
    pool, mixed_k, mixed_v = half_cold(batch, 2, dim)
    plan = plan_attention(
        batch, num_heads=2 * group, num_kv_heads=2, head_dim=dim,
        deterministic=deterministic, backend="triton",
    )  # fmt: skip
    q = torch.randn(plan.num_tokens, 2 * group, dim)
    k, v = torch.randn(2, plan.num_tokens, 2, dim)
    sinks = torch.randn(2 * group) if choice.pop("sinks", False) else None
    options = AttentionOptions(dim**-0.5, sinks=sinks, **choice)  # type: ignore[arg-type]
    out = attend(q, k, v, pool, plan, options)
    mixed_k[plan.new_slots], mixed_v[plan.new_slots] = k, v
    expected = attend_reference(q, mixed_k, mixed_v, batch, options)
    return float((out - expected).abs().max() / expected.abs().max().clamp(min=1))


COLD = {
    "plain": {},
    "window": {"window": 40},
    "soft-cap": {"soft_cap": 20.0},
    "sinks": {"sinks": True},
    "deterministic": {"deterministic": True},
}


@pytest.mark.parametrize("choice", COLD)
@pytest.mark.parametrize("seed", range(4))
def test_cold_segments_match_their_dequantised_reference(seed: int, choice: str) -> None:
    batch = random_forest(np.random.default_rng(seed), max_queries=2, quantized=True, longest=90)
    assert cold_error(batch, **COLD[choice]) < 1e-6  # type: ignore[arg-type]


def cold_prefix(branches: int, lengths: tuple[int, int]) -> TreeBatch:
    batch = level_forest((1, branches), lengths)
    return dataclasses.replace(batch, segment_quantized=np.arange(branches + 1) == 0)


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_cold_segments_of_any_head_dim(dim: int) -> None:
    assert cold_error(cold_prefix(3, (70, 9)), dim=dim) < 1e-6


@pytest.mark.parametrize("group", [1, 2, 5, 6, 7, 16])
def test_cold_segments_of_any_group_size(group: int) -> None:
    assert cold_error(cold_prefix(3, (70, 9)), group=group) < 1e-6


def later(batch: TreeBatch, slots: np.ndarray) -> TreeBatch:
    segments = list(batch.segment_slots)
    for branch, segment in enumerate(batch.branch_segment.tolist()):
        segments[segment] = np.append(segments[segment], slots[branch]).astype(np.int32)
    return dataclasses.replace(
        batch, segment_slots=segments, branch_query_start=batch.branch_query_start + 1
    )


@pytest.mark.parametrize("window", [None, 6])
def test_advancing_in_device_memory_equals_planning_anew(window: int | None) -> None:
    batch = random_forest(np.random.default_rng(5), max_branches=5, longest=70)
    count, first = len(batch.branch_segment), max(s.max(initial=0) for s in batch.segment_slots)
    k_pool, v_pool = poisoned_pool(batch, 1, 16, spare=count * 70)
    plan = plan_attention(batch, num_heads=2, num_kv_heads=1, head_dim=16, backend="triton")
    for step in range(67):  # past the reserve of 64, where the units are cut anew
        slots = first + 1 + step * count + np.arange(count)
        if step in (0, 1, 2, 63, 64, 65, 66):
            q, (k, v) = torch.randn(count, 2, 16), torch.randn(2, count, 1, 16)
            pool = LayerKV(k_pool, v_pool)
            out = attend(q, k, v, pool, plan, AttentionOptions(0.25, window=window))
            expected = attend_reference(
                q, k_pool, v_pool, batch, AttentionOptions(0.25, window=window)
            )
            torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-6)
        else:
            k_pool[plan.new_slots], v_pool[plan.new_slots] = torch.randn(2, count, 1, 16)
        plan.advance(slots.astype(np.int32))
        batch = later(batch, slots)


def test_units_are_cut_once_for_all_steps_of_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[int] = []
    cut = backend.units_of
    monkeypatch.setattr(backend, "units_of", lambda *a, **b: (cuts.append(step), cut(*a, **b))[1])
    plan = plan_attention(level_forest((1, 3), (70, 5)), num_heads=2, num_kv_heads=1,
                          head_dim=16, backend="triton")  # fmt: skip
    for step in range(2 * units.RESERVE):
        backend.device_plan(plan, None, 4)
        plan.advance(1000 + 3 * step + np.arange(3, dtype=np.int32))
    assert cuts == [0, units.RESERVE]


def test_deterministic_tails_grow_into_the_cut_of_a_plan_built_anew() -> None:
    """A tail that grows over the grid was once one unit, and two in any plan built later."""
    batch, steps = level_forest((1, 2), (300, 205)), 20
    k_pool, v_pool = poisoned_pool(batch, 1, 16, spare=2 * steps)
    options = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16}
    plan = plan_attention(batch, deterministic=True, backend="triton", **options)
    for step in range(steps):
        q, (k, v) = torch.randn(2, 2, 16), torch.randn(2, 2, 1, 16)
        anew = plan_attention(batch, deterministic=True, backend="triton", **options)
        out, expected = (
            attend(q, k, v, LayerKV(k_pool, v_pool), which, AttentionOptions(0.25))
            for which in (plan, anew)
        )
        assert torch.equal(out, expected), f"position {505 + step}"
        slots = 710 + 2 * step + np.arange(2)
        plan.advance(slots.astype(np.int32))
        batch = later(batch, slots)


def step_of(batch: TreeBatch) -> DecodeStep:
    plan = plan_of(batch)
    return DecodeStep(plan, [(None, 4)], np.arange(plan.num_tokens))


def plan_of(batch: TreeBatch) -> AttentionPlan:
    return plan_attention(batch, num_heads=2, num_kv_heads=1, head_dim=16, backend="triton")


def test_a_captured_plan_serves_smaller_batches_and_pads_with_zeros() -> None:
    """A larger plan first, so that stale units and rows would show in the smaller ones."""
    forests = [
        level_forest((1, 8), (300, 9)),
        level_forest((1, 5), (70, 5)),
        level_forest((6,), (9,)),
    ]
    graph = GraphPlan(step_of(forests[0]))
    for batch in forests:
        count = len(batch.branch_segment)
        k_pool, v_pool = poisoned_pool(batch, 1, 16)
        graph.load(step_of(batch))
        assert graph.input_ids.tolist() == [*range(count), *[0] * (8 - count)]
        q = torch.full((8, 2, 16), torch.nan)
        k, v = torch.full((2, 8, 1, 16), torch.nan)
        q[:count], k[:count], v[:count] = 1.0, torch.randn(count, 1, 16), torch.randn(count, 1, 16)
        out = attend(q, k, v, LayerKV(k_pool, v_pool), graph, AttentionOptions(0.25))
        expected = attend_reference(q[:count], k_pool, v_pool, batch, AttentionOptions(0.25))
        torch.testing.assert_close(out[:count].double(), expected, rtol=0, atol=1e-6)
        assert (out[count:] == 0).all()


def test_a_graph_captured_for_int8_reads_both_precisions() -> None:
    first, second = cold_prefix(4, (300, 9)), cold_prefix(3, (70, 5))
    graph = GraphPlan(step_of(first))
    for batch in (first, second, first):
        count = len(batch.branch_segment)
        pool, mixed_k, mixed_v = half_cold(batch, 1, 16)
        graph.load(step_of(batch))
        q, (k, v) = torch.randn(4, 2, 16), torch.randn(2, 4, 1, 16)
        out = attend(q, k, v, pool, graph, AttentionOptions(0.25))
        mixed_k[graph.new_slots[:count]], mixed_v[graph.new_slots[:count]] = k[:count], v[:count]
        expected = attend_reference(q[:count], mixed_k, mixed_v, batch, AttentionOptions(0.25))
        torch.testing.assert_close(out[:count].double(), expected, rtol=0, atol=1e-6)
        assert (out[count:] == 0).all()


def test_a_plan_beyond_the_capacity_is_refused() -> None:
    graph = GraphPlan(step_of(level_forest((1, 3), (70, 5))))
    with pytest.raises(CapacityError, match="up to 4 branches"):
        graph.load(step_of(level_forest((1, 9), (70, 5))))
    with pytest.raises(ValueError, match="decode steps"):
        step_of(level_forest((1, 2), (70, 5), num_queries=2))
    with pytest.raises(CapacityError, match="room for"):
        graph.load(step_of(level_forest((1, 3), (7000, 5))))


def test_a_shape_has_room_for_its_step_and_no_more_than_twice_that() -> None:
    for branches, length in ((3, 70), (40, 900), (200, 5000)):
        step = step_of(level_forest((1, branches), (length, 5)))
        (cut,) = step.units.values()
        shape = step.shape
        assert shape.num_tokens >= branches
        assert len(cut.slots) <= shape.num_slots
        assert max(len(part.units) for part in cut.lists) <= shape.num_units
        assert cut.num_parts <= shape.num_parts
        assert not shape.slot_level or shape.num_slots < 2 * len(cut.slots) + 1


def test_buckets_cover_every_batch_size() -> None:
    sizes = [bucket_of(n) for n in range(1, 600)]
    assert all(size >= n for n, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 20
