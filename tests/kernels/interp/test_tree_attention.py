"""tree_attn_partial and tree_merge in the interpreter, against float64, over poisoned pools."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from radixlang.kernels.attention import LayerKV, attend
from radixlang.kernels.batch import TreeBatch
from radixlang.kernels.forests import level_forest, poisoned_pool, random_forest
from radixlang.kernels.plan import plan_attention
from radixlang.kernels.reference import attend_reference


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
    out = attend(
        q, k, v, LayerKV(k_pool, v_pool), plan,
        scale=dim**-0.5, window=window, soft_cap=soft_cap, sinks=sink,
    )  # fmt: skip
    expected = attend_reference(
        q, k_pool, v_pool, batch, scale=dim**-0.5, window=window, soft_cap=soft_cap, sinks=sink
    )
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


def test_every_length_of_two_blocks_and_one_more() -> None:
    """One tail of each length 1 .. 2 * BLOCK_N + 1 (32 for float32), in one batch."""
    lengths = list(range(1, 66))
    starts = 17 + np.concatenate([[0], np.cumsum(lengths)])
    slots = [np.arange(17, dtype=np.int32)]
    slots += [np.arange(a, b, dtype=np.int32) for a, b in itertools.pairwise(starts)]
    count = len(lengths)
    batch = TreeBatch(
        slots,
        np.array([-1] + [0] * count, dtype=np.int32),
        np.array([0] + [17] * count, dtype=np.int32),
        np.arange(1, count + 1, dtype=np.int32),
        16 + np.array(lengths, dtype=np.int32),
        np.ones(count, dtype=np.int32),
    )
    assert run(batch, heads=1) < 1e-6


@pytest.mark.parametrize("window", [63, 64, 65])
def test_windows_one_key_either_side_of_a_block(window: int) -> None:
    assert run(level_forest((1, 2), (64, 70)), window=window) < 1e-6


def test_many_rows_fill_several_tiles() -> None:
    assert run(level_forest((1, 60), (80, 3)), heads=3) < 1e-6


@pytest.mark.parametrize("soft_cap", [None, 30.0])
@pytest.mark.parametrize(("size", "limit"), [(1e3, 2e-3), (-1e3, 2e-3), (1e18, torch.inf)])
def test_huge_scores_stay_finite(size: float, limit: float, soft_cap: float | None) -> None:
    batch = level_forest((1, 2), (40, 3))
    plan = plan_attention(batch, num_heads=2, num_kv_heads=1, head_dim=16, backend="triton")
    k_pool, v_pool = poisoned_pool(batch, 1, 16)
    q, k, v = torch.ones(2, 2, 16), torch.ones(2, 1, 16) * size, torch.randn(2, 1, 16)
    k_pool[:40] = size
    out = attend(q, k, v, LayerKV(k_pool, v_pool), plan, scale=1.0, soft_cap=soft_cap)
    expected = attend_reference(q, k_pool, v_pool, batch, scale=1.0, soft_cap=soft_cap)
    assert torch.isfinite(out).all()
    assert (out - expected).abs().max() < limit


def test_deterministic_results_have_the_same_bits_in_any_company() -> None:
    batch = level_forest((1, 2, 6), (600, 90, 31))
    k_pool, v_pool = poisoned_pool(batch, 1, 16)
    q, (k, v) = torch.randn(6, 3, 16), torch.randn(2, 6, 1, 16)

    def result(which: TreeBatch, rows: slice) -> torch.Tensor:
        plan = plan_attention(
            which, num_heads=3, num_kv_heads=1, head_dim=16, deterministic=True, backend="triton"
        )
        return attend(q[rows], k[rows], v[rows], LayerKV(k_pool, v_pool), plan, scale=0.25)

    together = result(batch, slice(None))
    for branch in range(6):
        at = slice(branch, branch + 1)
        only = TreeBatch(
            batch.segment_slots, batch.segment_parent, batch.segment_start,
            batch.branch_segment[at], batch.branch_query_start[at], batch.branch_num_queries[at],
        )  # fmt: skip
        assert torch.equal(result(only, at), together[at])


def test_offsets_beyond_two_billion_elements() -> None:
    """int32 offsets wrap silently. The pool is never touched but at its far end."""
    dim, far = 64, 2**31 // 64 + 100
    planes = [torch.from_numpy(np.zeros((far + 50, 1, dim), dtype=np.float16)) for _ in range(2)]
    batch = level_forest((1, 2), (20, 3))
    moved = TreeBatch(
        [slots + far for slots in batch.segment_slots], batch.segment_parent,
        batch.segment_start, batch.branch_segment, batch.branch_query_start,
        batch.branch_num_queries,
    )  # fmt: skip
    for plane in planes:
        plane[far:] = torch.randn(50, 1, dim).half()
    plan = plan_attention(moved, num_heads=1, num_kv_heads=1, head_dim=dim, backend="triton")
    q, (k, v) = torch.randn(2, 1, dim).half(), torch.randn(2, 2, 1, dim).half()
    out = attend(q, k, v, LayerKV(*planes), plan, scale=0.125)
    expected = attend_reference(q, planes[0][far:], planes[1][far:], batch, scale=0.125)
    assert (out - expected).abs().max() < 1e-3
