"""The CPU path against float64, over poisoned pools: what nobody owns must never be read."""

from __future__ import annotations

import dataclasses
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.kernels.attention import attend, attend_packed, plan_attention
from radixlang.kernels.cpu import attention as cpu
from radixlang.kernels.cpu.backend import CpuBackend, cpu_schedule
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import attend_reference
from radixlang.kernels.tools.forests import level_forest, poisoned_pool, random_forest

pytestmark = pytest.mark.usefixtures("nan_filled_memory")
SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def run(
    batch: TreeBatch,
    *,
    heads: int = 6,
    kv_heads: int = 2,
    dim: int = 16,
    dtype: torch.dtype = torch.float32,
    pool_dtype: torch.dtype | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: bool = False,
    deterministic: bool = False,
) -> float:
    """Largest error of `attend` against the float64 reference, relative to the largest value."""
    plan = plan_attention(
        batch, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, deterministic=deterministic
    )
    k_pool, v_pool = poisoned_pool(batch, kv_heads, dim, dtype=pool_dtype or dtype)
    torch.manual_seed(1)
    q = torch.randn(plan.num_tokens, heads, dim).to(dtype)
    k, v = (torch.randn(plan.num_tokens, kv_heads, dim).to(dtype) for _ in range(2))
    sink = torch.randn(heads) if sinks else None
    scale = dim**-0.5
    options = AttentionOptions(scale, window, soft_cap, sink)
    out = attend(q, k, v, LayerKV(k_pool, v_pool), plan, options)
    expected = attend_reference(q, k_pool, v_pool, batch, options)
    assert out.dtype == dtype
    return float((out - expected).abs().max() / expected.abs().max().clamp(min=1))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=SEEDS,
    queries=st.sampled_from([1, 1, 4, 60]),
    window=st.sampled_from([None, None, 1, 5, 40, 64]),
    soft_cap=st.sampled_from([None, None, 20.0]),
    sinks=st.booleans(),
    deterministic=st.booleans(),
    spare_bytes=st.sampled_from([0, 1 << 16]),
)
def test_random_forests_match_float64(
    seed: int,
    queries: int,
    window: int | None,
    soft_cap: float | None,
    sinks: bool,
    deterministic: bool,
    spare_bytes: int,
) -> None:
    batch = random_forest(np.random.default_rng(seed), max_queries=queries, longest=400)
    with patch.object(CpuBackend, "spare_bytes", spare_bytes):
        error = run(
            batch, window=window, soft_cap=soft_cap, sinks=sinks, deterministic=deterministic
        )
    assert error < 2e-6


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)]
)
@pytest.mark.parametrize("shape", [(1, 4), (5, 3)], ids=["B4-T1", "B3-T5"])
def test_every_dtype(dtype: torch.dtype, limit: float, shape: tuple[int, int]) -> None:
    queries, branches = shape
    batch = level_forest((1, branches), (700, 40), num_queries=queries)
    assert run(batch, dtype=dtype) < limit


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=SEEDS,
    queries=st.sampled_from([1, 1, 4, 60]),
    window=st.sampled_from([None, None, 5, 40]),
    soft_cap=st.sampled_from([None, None, 20.0]),
    sinks=st.booleans(),
    deterministic=st.booleans(),
    half=st.sampled_from([(torch.bfloat16, 2e-2), (torch.float16, 3e-3)]),
)
def test_a_half_precision_pool_beside_float32_queries(
    seed: int,
    queries: int,
    window: int | None,
    soft_cap: float | None,
    sinks: bool,
    deterministic: bool,
    half: tuple[torch.dtype, float],
) -> None:
    batch = random_forest(np.random.default_rng(seed), max_queries=queries, longest=400)
    error = run(batch, pool_dtype=half[0], window=window, soft_cap=soft_cap, sinks=sinks,
                deterministic=deterministic)  # fmt: skip
    assert error < half[1]


def test_a_long_branch_alone_in_a_half_precision_pool() -> None:
    """The one call that is all of the step, its keys shared among threads."""
    for length in (500, 1900):
        batch = level_forest((1,), (length,))
        assert run(batch, pool_dtype=torch.bfloat16, heads=9, kv_heads=3, dim=64) < 1e-2


@pytest.mark.parametrize("group", range(1, 17))
def test_any_group_size(group: int) -> None:
    assert run(level_forest((1, 3), (130, 9)), heads=2 * group, kv_heads=2) < 1e-6


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 224, 256])
def test_any_head_dim(dim: int) -> None:
    assert run(level_forest((1, 3), (130, 9)), dim=dim) < 1e-6


@pytest.mark.parametrize("window", [31, 32, 33])
@pytest.mark.parametrize("queries", [1, 7, 40])
def test_windows_one_key_either_side_of_a_border(window: int, queries: int) -> None:
    """A window that is one key short passes every test but this one."""
    assert run(level_forest((1, 3), (32, 41), num_queries=queries), window=window) < 1e-6


@pytest.mark.parametrize("queries", [1, 5])
def test_a_window_reads_nothing_behind_it(queries: int) -> None:
    """Keys out of every row's reach may be anything, even freed."""
    window, batch = 20, level_forest((1, 2), (100, 30), num_queries=queries)
    plan = plan_attention(batch, num_heads=2, num_kv_heads=1, head_dim=16)
    k_pool, v_pool = poisoned_pool(batch, 1, 16)
    q, k, v = torch.randn(2 * queries, 2, 16), *torch.randn(2, 2 * queries, 1, 16)
    behind = int(batch.branch_query_start[0]) - window + 1
    k_pool[:behind] = v_pool[:behind] = torch.nan
    out = attend(q, k, v, LayerKV(k_pool, v_pool), plan, AttentionOptions(0.25, window=window))
    assert torch.isfinite(out).all()


def test_every_length_around_a_block() -> None:
    errors = [run(level_forest((1, 2), (17 + n, 1 + n % 5))) for n in range(140)]
    assert max(errors) < 1e-6


@pytest.mark.parametrize("soft_cap", [None, 30.0])
@pytest.mark.parametrize(
    ("size", "limit"), [(1e3, 2e-3), (-1e3, 2e-3), (-6e3, 2e-2), (1e18, torch.inf)]
)
def test_huge_scores_stay_finite(size: float, limit: float, soft_cap: float | None) -> None:
    """A soft cap once gave inf / inf, and a sentinel of -5e4 outweighed real scores.

    The limit is what a float32 log-sum-exp resolves at 16 * size; at 1e18 that is nothing.
    """
    batch = level_forest((1, 2), (40, 3))
    plan = plan_attention(batch, num_heads=2, num_kv_heads=1, head_dim=16)
    k_pool, v_pool = poisoned_pool(batch, 1, 16)
    q, k, v = torch.ones(2, 2, 16), torch.ones(2, 1, 16) * size, torch.randn(2, 1, 16)
    k_pool[:40] = size
    out = attend(q, k, v, LayerKV(k_pool, v_pool), plan, AttentionOptions(1.0, soft_cap=soft_cap))
    expected = attend_reference(q, k_pool, v_pool, batch, AttentionOptions(1.0, soft_cap=soft_cap))
    assert torch.isfinite(out).all()
    assert (out - expected).abs().max() < limit


def with_cold_planes(k: torch.Tensor, v: torch.Tensor) -> tuple[LayerKV, LayerKV]:
    """The pool with int8 planes beside it, and what those planes stand for."""
    scales = [plane.abs().amax(-1) / 127 for plane in (k, v)]
    cold = [
        torch.nan_to_num(plane / scale[..., None]).round().to(torch.int8)
        for plane, scale in zip((k, v), scales, strict=True)
    ]
    pool = LayerKV(k, v, cold[0], cold[1], scales[0], scales[1])
    exact = [plane * scale[..., None] for plane, scale in zip(cold, scales, strict=True)]
    return pool, LayerKV(exact[0], exact[1])


def joined(halves: cpu.Partials, plan: AttentionPlan) -> torch.Tensor:
    """The whole, [num_tokens, num_heads, head_dim] in flat order."""
    lses = torch.stack((halves.first_lse, halves.second_lse)).double()
    parts = torch.stack((halves.first, halves.second)).double()
    whole = (torch.softmax(lses, 0).unsqueeze(-1) * parts).sum(0).transpose(1, 2)
    whole = whole.reshape(plan.q_shape)
    return whole if plan.row_inverse is None else whole[plan.row_inverse]


@pytest.mark.parametrize("pool_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("is_in_order", [True, False])
@pytest.mark.parametrize(
    ("branches", "lengths", "num_parts"),
    [((1, 5), (700, 33), 2), ((1, 7), (12, 40), 1), ((1, 3, 9), (900, 700, 21), 0)],
)
def test_halves_join_to_what_attend_gives(
    branches: tuple[int, ...],
    lengths: tuple[int, ...],
    num_parts: int,
    is_in_order: bool,
    queries: int,
    pool_dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CpuBackend, "spare_bytes", 0)  # every shared node is read by itself
    batch = level_forest(branches, lengths, num_queries=queries)
    if not is_in_order:  # the first and the last branch change places
        leaves = batch.branch_segment.copy()
        leaves[[0, -1]] = leaves[[-1, 0]]
        batch = dataclasses.replace(batch, branch_segment=leaves)
    plan = plan_attention(batch, num_heads=6, num_kv_heads=2, head_dim=16)
    pools = [poisoned_pool(batch, 2, 16, dtype=pool_dtype) for _ in range(2)]
    q, k, v = torch.randn(plan.q_shape), *torch.randn(2, *plan.kv_shape)
    rows = cpu.packed(q, plan.num_kv_heads, pool_dtype)
    found = attend_packed(rows, k, v, LayerKV(*pools[0]), plan, AttentionOptions(0.25))
    expected = attend(q, k, v, LayerKV(*pools[1]), plan, AttentionOptions(0.25))
    if not num_parts:
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, expected)
        return
    assert isinstance(found, cpu.Partials)
    assert (found.first is found.second) == (num_parts == 1)
    assert found.first.dtype == pool_dtype
    assert all(getattr(found, field.name).is_contiguous() for field in dataclasses.fields(found))
    torch.testing.assert_close(joined(found, plan).float(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("seed", range(6))
def test_int8_segments_match_their_dequantised_reference(seed: int) -> None:
    batch = random_forest(np.random.default_rng(seed), max_queries=3, quantized=True)
    assert batch.segment_quantized is not None
    plan = plan_attention(batch, num_heads=4, num_kv_heads=2, head_dim=16)
    k_pool, v_pool = poisoned_pool(batch, 2, 16)
    pool, exact = with_cold_planes(k_pool, v_pool)
    q, k, v = torch.randn(plan.num_tokens, 4, 16), *torch.randn(2, plan.num_tokens, 2, 16)
    out = attend(q, k, v, pool, plan, AttentionOptions(0.25))
    mixed_k, mixed_v = k_pool.clone(), v_pool.clone()
    for segment in np.flatnonzero(batch.segment_quantized).tolist():
        slots = torch.from_numpy(batch.segment_slots[segment]).long()
        mixed_k[slots], mixed_v[slots] = exact.k[slots], exact.v[slots]
    expected = attend_reference(q, mixed_k, mixed_v, batch, AttentionOptions(0.25))
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-6)


def test_int8_segments_need_int8_planes() -> None:
    batch = level_forest((1, 2), (40, 3))
    cold = TreeBatch(
        batch.segment_slots, batch.segment_parent, batch.segment_start, batch.branch_segment,
        batch.branch_query_start, batch.branch_num_queries, np.array([True, False, False]),
    )  # fmt: skip
    with pytest.raises(ValueError, match="no int8 planes"):
        run(cold)


def test_a_shared_node_is_read_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 branches below one prefix: one call over the prefix, one over all the tails."""
    calls: list[tuple[int, ...]] = []
    flash = cpu._flash

    def counting(q: torch.Tensor, k: torch.Tensor, *rest: object, **named: object) -> object:
        calls.append((q.shape[0], q.shape[2], k.shape[2]))
        return flash(q, k, *rest, **named)

    monkeypatch.setattr(cpu, "_flash", counting)
    assert run(level_forest((1, 32), (900, 20))) < 1e-6
    assert calls == [(32, 3, 20), (1, 96, 900)]


def test_partials_are_merged_in_float32() -> None:
    """With partials rounded to bf16, many equal parts would drift by more than one rounding."""
    batch = level_forest((1,) * 1 + (2,) * 1 + (4, 8, 16), (64,) * 4 + (4,))
    assert run(batch, dtype=torch.bfloat16) < 4.5e-3


@pytest.mark.parametrize("queries", [1, 5, 40])
def test_a_log_sum_exp_is_read_by_its_strides(
    queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The op may lay it out by row or by head: a merge that takes one for granted is garbled."""
    flash = cpu._flash

    def by_row(*rest: object, **named: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = flash(*rest, **named)
        lse = lse.transpose(1, 2).contiguous().transpose(1, 2)
        return out.transpose(1, 2).contiguous().transpose(1, 2), lse

    def by_head(*rest: object, **named: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = flash(*rest, **named)
        return out.contiguous(), lse.contiguous()

    for layout in (by_row, by_head):
        monkeypatch.setattr(cpu, "_flash", layout)
        assert run(level_forest((1, 3), (900, 50), num_queries=queries)) < 1e-6
        assert run(level_forest((1,), (2000,), num_queries=queries)) < 1e-6


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("scattered", [False, True])
def test_offsets_beyond_two_billion_elements(queries: int, scattered: bool) -> None:
    """int32 offsets wrap silently. Pages of the pool that nobody touches take no memory."""
    far, order = 2**31 // 64 + 100, np.arange(500, dtype=np.int32)
    planes = [torch.from_numpy(np.zeros((far + 500, 1, 64), dtype=np.float16)) for _ in range(2)]
    for plane in planes:
        plane[far:] = torch.randn(500, 1, 64).half()
    batch = level_forest((1, 2), (400, 50), num_queries=queries)
    if scattered:
        order = np.random.default_rng(0).permutation(order)
    near = [order[slots] for slots in batch.segment_slots]
    moved = dataclasses.replace(batch, segment_slots=[slots + far for slots in near])
    plan = plan_attention(moved, num_heads=3, num_kv_heads=1, head_dim=64)
    q = torch.randn(2 * queries, 3, 64).half()
    k, v = torch.randn(2, 2 * queries, 1, 64).half()
    out = attend(q, k, v, LayerKV(*planes), plan, AttentionOptions(0.125))
    batch = dataclasses.replace(batch, segment_slots=near)
    expected = attend_reference(q, planes[0][far:], planes[1][far:], batch, AttentionOptions(0.125))
    assert (out - expected).abs().max() < 1e-3


def alone(batch: TreeBatch, branch: int) -> TreeBatch:
    at = slice(branch, branch + 1)
    return TreeBatch(
        batch.segment_slots, batch.segment_parent, batch.segment_start, batch.branch_segment[at],
        batch.branch_query_start[at], batch.branch_num_queries[at],
    )  # fmt: skip


@pytest.mark.parametrize("queries", [1, 6, 40])
@pytest.mark.parametrize("window", [None, 50])
def test_deterministic_results_have_the_same_bits_in_any_company(
    queries: int, window: int | None
) -> None:
    batch = level_forest((1, 2, 6), (700, 90, 41), num_queries=queries)
    k_pool, v_pool = poisoned_pool(batch, 2, 16)
    q = torch.randn(6 * queries, 4, 16)
    k, v = torch.randn(2, 6 * queries, 2, 16)

    def result(which: TreeBatch, rows: slice) -> torch.Tensor:
        plan = plan_attention(which, num_heads=4, num_kv_heads=2, head_dim=16, deterministic=True)
        pool = LayerKV(k_pool, v_pool)
        return attend(q[rows], k[rows], v[rows], pool, plan, AttentionOptions(0.25, window=window))

    together = result(batch, slice(None))
    for branch in range(6):
        rows = slice(branch * queries, (branch + 1) * queries)
        assert torch.equal(result(alone(batch, branch), rows), together[rows])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"q": (3, 4, 16)}, "q is"), ({"k": (2, 1, 16)}, "k is"), ({"window": 0}, "shows nothing")],
)
def test_shapes_must_agree_with_the_plan(change: dict[str, object], message: str) -> None:
    batch = level_forest((1, 2), (40, 3))
    plan: AttentionPlan = plan_attention(batch, num_heads=4, num_kv_heads=2, head_dim=16)
    k_pool, v_pool = poisoned_pool(batch, 2, 16)
    q = torch.randn(change.get("q", (2, 4, 16)))  # type: ignore[arg-type, call-overload]
    k = torch.randn(change.get("k", (2, 2, 16)))  # type: ignore[arg-type, call-overload]
    window = change.get("window")
    with pytest.raises(ValueError, match=message):
        attend(q, k, k, LayerKV(k_pool, v_pool), plan, AttentionOptions(1.0, window=window))  # type: ignore[arg-type]


def test_a_pool_that_is_not_contiguous_is_refused() -> None:
    """The op would read a strided last dimension wrongly and say nothing."""
    plane = torch.zeros(8, 2, 32)[..., ::2]
    with pytest.raises(ValueError, match="must be contiguous"):
        LayerKV(plane, plane)


@pytest.mark.parametrize("length", [1023, 1024, 1025, 2100])
def test_long_even_tails_are_read_together_in_place(length: int) -> None:
    assert run(level_forest((3,), (length,))) < 1e-6
    assert run(level_forest((3,), (length,)), dtype=torch.bfloat16) < 8e-3


def test_long_even_tails_that_drift_apart_are_still_right() -> None:
    """The next tokens do not continue the even layout, so the schedule is built anew."""
    batch = level_forest((3,), (26_000,))
    plan = plan_attention(batch, num_heads=6, num_kv_heads=2, head_dim=16)
    kept = cpu_schedule(plan, None)
    assert len(kept.first) == 1
    plan.advance(np.array([78_000, 78_010, 78_005], dtype=np.int32))
    assert cpu_schedule(plan, None) is not kept
    assert len(cpu_schedule(plan, None).rest) == 3
