"""tree_attn_partial and tree_merge in the interpreter, against float64, over poisoned pools."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.gpu import launch as gpu
from radixlang.kernels.gpu.backend import device_plan
from radixlang.kernels.gpu.layer import AttentionLayer
from radixlang.kernels.gpu.plan.plan_units import units_of
from radixlang.kernels.gpu.plan.tiles import pick_tile
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import attend_reference, partial_reference, slots_seen
from radixlang.kernels.tools.forests import level_forest, poisoned_pool, random_forest


def run(
    batch: TreeBatch,
    *,
    heads: int = 3,
    kv_heads: int = 1,
    dim: int = 16,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: bool = False,
    deterministic: bool = False,
) -> float:
    """Largest error against the float64 reference, relative to the largest value."""
    plan = plan_attention(
        batch, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim,
        deterministic=deterministic, backend="triton",
    )  # fmt: skip
    k_pool, v_pool = poisoned_pool(batch, kv_heads, dim, dtype=dtype)
    torch.manual_seed(1)
    q = torch.randn(plan.num_tokens, heads, dim).to(dtype)
    k, v = (torch.randn(plan.num_tokens, kv_heads, dim).to(dtype) for _ in range(2))
    sink = torch.randn(heads) if sinks else None
    options = AttentionOptions(dim**-0.5, window, soft_cap, sink)
    out = attend(q, k, v, LayerKV(k_pool, v_pool), plan, options)
    expected = attend_reference(q, k_pool, v_pool, batch, options)
    return float((out - expected).abs().max() / expected.abs().max().clamp(min=1))


CHOICES = {
    "plain": {},
    "window": {"window": 40},
    "soft-cap": {"soft_cap": 20.0},
    "sinks": {"sinks": True},
    "all": {"window": 64, "soft_cap": 20.0, "sinks": True},
    "deterministic": {"deterministic": True},
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("queries", [1, 5])
def test_random_forests_match_float64(choice: str, queries: int) -> None:
    for seed in range(3):
        batch = random_forest(np.random.default_rng(seed), max_queries=queries, longest=300)
        assert run(batch, **CHOICES[choice]) < 1e-6  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)]
)
def test_every_dtype(dtype: torch.dtype, limit: float) -> None:
    assert run(level_forest((1, 4), (300, 20)), dtype=dtype) < limit


@pytest.mark.parametrize("group", range(1, 17))
def test_any_group_size(group: int) -> None:
    assert run(level_forest((1, 3), (70, 9)), heads=group) < 1e-6


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 224, 256])
def test_any_head_dim(dim: int) -> None:
    assert run(level_forest((1, 3), (70, 9)), dim=dim) < 1e-6


@pytest.mark.parametrize("heads", [(9, 3), (14, 2), (28, 4), (5, 1), (8, 1)], ids=str)
def test_heads_of_real_models(heads: tuple[int, int]) -> None:
    batch = level_forest((1, 2), (70, 9))
    assert run(batch, heads=heads[0], kv_heads=heads[1]) < 1e-6


def tails(lengths: range, num_queries: int) -> TreeBatch:
    """A tail of each length below one short node."""
    starts = 17 + np.concatenate([[0], np.cumsum(lengths)])
    slots = [np.arange(17, dtype=np.int32)]
    slots += [np.arange(a, b, dtype=np.int32) for a, b in itertools.pairwise(starts)]
    count = len(lengths)
    return TreeBatch(
        slots,
        np.array([-1] + [0] * count, dtype=np.int32),
        np.array([0] + [17] * count, dtype=np.int32),
        np.arange(1, count + 1, dtype=np.int32),
        17 - num_queries + np.array(lengths, dtype=np.int32),
        np.full(count, num_queries, dtype=np.int32),
    )


@pytest.mark.parametrize(
    ("dtype", "block", "limit"), [(torch.float32, 32, 1e-6), (torch.float16, 64, 1e-3)], ids=str
)
def test_every_length_of_two_blocks_and_one_more(
    dtype: torch.dtype, block: int, limit: float
) -> None:
    """One tail of each length 1 .. 2 * BLOCK_N + 1, in one batch."""
    assert pick_tile(1, 16, itemsize=dtype.itemsize).block_n == block
    assert run(tails(range(1, 2 * block + 2), 1), heads=1, dtype=dtype) < limit


def test_every_length_of_two_blocks_and_one_more_in_one_pass() -> None:
    """extend_attn: 17 keys before, 4 new tokens of 16 heads each, up to 2 * BLOCK_N + 1 keys."""
    batch = tails(range(4, 2 * 16 + 2), 4)
    plan = plan_attention(batch, num_heads=16, num_kv_heads=1, head_dim=16, backend="triton")
    assert not units_of(plan, None, 4).lists
    assert run(batch, heads=16) < 1e-6


@pytest.mark.parametrize("window", [63, 64, 65])
def test_windows_one_key_either_side_of_a_block(window: int) -> None:
    assert run(level_forest((1, 2), (64, 70)), window=window) < 1e-6


def test_many_rows_fill_several_tiles() -> None:
    assert run(level_forest((1, 60), (80, 3)), heads=3) < 1e-6


@pytest.mark.parametrize("soft_cap", [None, 30.0])
@pytest.mark.parametrize(
    ("size", "limit"), [(1e3, 2e-3), (-1e3, 2e-3), (-6e3, 2e-2), (1e18, torch.inf)]
)
def test_huge_scores_stay_finite(size: float, limit: float, soft_cap: float | None) -> None:
    """Scores of -96,000 lie below -5e4, which was once the score of what is masked."""
    batch = level_forest((1, 2), (40, 3))
    plan = plan_attention(batch, num_heads=2, num_kv_heads=1, head_dim=16, backend="triton")
    k_pool, v_pool = poisoned_pool(batch, 1, 16)
    q, k, v = torch.ones(2, 2, 16), torch.ones(2, 1, 16) * size, torch.randn(2, 1, 16)
    k_pool[:40] = size
    out = attend(q, k, v, LayerKV(k_pool, v_pool), plan, AttentionOptions(1.0, soft_cap=soft_cap))
    expected = attend_reference(q, k_pool, v_pool, batch, AttentionOptions(1.0, soft_cap=soft_cap))
    assert torch.isfinite(out).all()
    assert (out - expected).abs().max() < limit


def test_partials_are_not_rounded() -> None:
    """A result of many float16 keys is the exact one, rounded once. (Here all is float32.)"""
    batch = level_forest((1, 2, 4), (600, 300, 70))
    plan = plan_attention(batch, num_heads=4, num_kv_heads=1, head_dim=16, backend="triton")
    assert units_of(plan, None, 2).row_count.min() >= 3
    k_pool, v_pool = poisoned_pool(batch, 1, 16, dtype=torch.float16)
    q, (k, v) = torch.randn(4, 4, 16).half(), torch.randn(2, 4, 1, 16).half()
    out = attend(q, k, v, LayerKV(k_pool, v_pool), plan, AttentionOptions(0.25))
    expected = attend_reference(q, k_pool, v_pool, batch, AttentionOptions(0.25))
    assert (out != expected.half()).double().mean() < 0.01


@pytest.mark.parametrize("queries", [1, 8], ids=["tree", "one-pass"])
@pytest.mark.parametrize("window", [None, 3])
def test_log_sum_exps_are_natural(queries: int, window: int | None) -> None:
    """In base 2 inside: what went out so was once merged as if it were natural."""
    batch = level_forest((1, 2), (600, 30), num_queries=queries)
    plan = plan_attention(batch, num_heads=8, num_kv_heads=1, head_dim=16, backend="triton")
    k_pool, v_pool = poisoned_pool(batch, 1, 16)
    q = torch.randn(2 * queries, 8, 16)
    layer = AttentionLayer(1, 8, 16, AttentionOptions(0.25, window))
    units = device_plan(plan, window, 4)
    out, lse = gpu.attend_triton(q, LayerKV(k_pool, v_pool), units, layer, with_lse=True)
    for row, slots in enumerate(slots_seen(batch, window)):
        seen = torch.ones(1, len(slots), dtype=torch.bool)
        one, its_lse = partial_reference(
            q[row : row + 1], k_pool[slots], v_pool[slots], seen, AttentionOptions(0.25)
        )
        torch.testing.assert_close(out[row].double(), one[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(lse[row].double(), its_lse[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize("queries", [1, 30], ids=["tree", "one-pass-too"])
@pytest.mark.parametrize("window", [None, 40])
def test_deterministic_results_have_the_same_bits_in_any_company(
    queries: int, window: int | None
) -> None:
    batch = random_forest(
        np.random.default_rng(1), max_queries=queries, max_branches=6, longest=600
    )
    count = len(batch.branch_segment)
    k_pool, v_pool = poisoned_pool(batch, 1, 16)
    edges = np.concatenate([[0], np.cumsum(batch.branch_num_queries)])
    q, (k, v) = torch.randn(int(edges[-1]), 3, 16), torch.randn(2, int(edges[-1]), 1, 16)

    def result(which: TreeBatch, rows: slice) -> torch.Tensor:
        plan = plan_attention(
            which, num_heads=3, num_kv_heads=1, head_dim=16, deterministic=True, backend="triton"
        )
        pool = LayerKV(k_pool, v_pool)
        return attend(q[rows], k[rows], v[rows], pool, plan, AttentionOptions(0.25, window=window))

    together = result(batch, slice(None))
    assert count == 5
    for branch in range(count):
        at, rows = slice(branch, branch + 1), slice(int(edges[branch]), int(edges[branch + 1]))
        only = TreeBatch(
            batch.segment_slots, batch.segment_parent, batch.segment_start,
            batch.branch_segment[at], batch.branch_query_start[at], batch.branch_num_queries[at],
        )  # fmt: skip
        assert torch.equal(result(only, rows), together[rows])


FAR = 2**31 // 64 + 100  # the first slot of 64 numbers whose offset int32 does not hold


def far_planes(dtype: type) -> list[torch.Tensor]:
    """Two planes of 64 numbers a slot, of which only pages that are touched take memory."""
    return [torch.from_numpy(np.zeros((FAR + 50, 1, 64), dtype=dtype)) for _ in range(2)]


def far_plan(batch: TreeBatch, *, quantized: bool = False) -> AttentionPlan:
    moved = dataclasses.replace(
        batch,
        segment_slots=[slots + FAR for slots in batch.segment_slots],
        segment_quantized=np.array([True, False, False]) if quantized else None,
    )
    return plan_attention(moved, num_heads=8, num_kv_heads=1, head_dim=64, backend="triton")


@pytest.mark.parametrize("queries", [1, 8], ids=["tree", "one-pass"])
def test_offsets_beyond_two_billion_elements(queries: int) -> None:
    """int32 offsets wrap silently. The pool is never touched but at its far end."""
    batch, planes = level_forest((1, 2), (20, 10), num_queries=queries), far_planes(np.float16)
    for plane in planes:
        plane[FAR:] = torch.randn(50, 1, 64).half()
    plan = far_plan(batch)
    q = torch.randn(2 * queries, 8, 64).half()
    k, v = torch.randn(2, 2 * queries, 1, 64).half()
    out = attend(q, k, v, LayerKV(*planes), plan, AttentionOptions(0.125))
    expected = attend_reference(q, planes[0][FAR:], planes[1][FAR:], batch, AttentionOptions(0.125))
    assert (out - expected).abs().max() < 1e-3


@pytest.mark.parametrize("rotary", [False, True], ids=["append", "rotary-append"])
def test_int8_offsets_beyond_two_billion_elements(rotary: bool) -> None:
    batch, planes, cold = (
        level_forest((1, 2), (20, 10)),
        far_planes(np.float16),
        far_planes(np.int8),
    )
    scales = [torch.from_numpy(np.zeros((FAR + 50, 1), dtype=np.float32)) for _ in range(2)]
    pool = LayerKV(*planes, *cold, *scales)
    for plane in planes:
        plane[FAR + 20 :] = torch.randn(30, 1, 64).half()
    keys, values = torch.randn(2, 20, 1, 64)
    slots = FAR + torch.arange(20)
    if rotary:
        rotations = torch.ones(20, 32, dtype=torch.complex64)
        gpu.rotary_append(pool, slots, keys, keys, values, rotations, quantize=True)
    else:
        gpu.append(pool, slots, keys, values, quantize=True)
    plan = far_plan(batch, quantized=True)
    q, (k, v) = torch.randn(2, 8, 64).half(), torch.randn(2, 2, 1, 64).half()
    out = attend(q, k, v, pool, plan, AttentionOptions(0.125))
    exact = [plane[FAR:].float() for plane in planes]
    for plane, codes, scale in zip(exact, cold, scales, strict=True):
        plane[:20] = codes[slots] * scale[slots, :, None]
    assert (exact[0][:20] - keys).abs().max() < 0.02
    assert (out - attend_reference(q, *exact, batch, AttentionOptions(0.125))).abs().max() < 1e-3
