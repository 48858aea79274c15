"""extend_attn in the interpreter: many new tokens in one pass, beside branches that decode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.gpu.plan.plan_units import units_of
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import attend_reference
from radixlang.kernels.tools.forests import level_forest, poisoned_pool, random_forest


def error(
    batch: TreeBatch,
    *,
    heads: int = 2,
    dim: int = 16,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> float:
    plan = plan_attention(batch, num_heads=heads, num_kv_heads=1, head_dim=dim, backend="triton")
    assert units_of(plan, window, 4).extend is not None
    k_pool, v_pool = poisoned_pool(batch, 1, dim)
    q, (k, v) = torch.randn(plan.num_tokens, heads, dim), torch.randn(2, plan.num_tokens, 1, dim)
    pool = LayerKV(k_pool, v_pool)
    options = AttentionOptions(dim**-0.5, window, soft_cap, sinks)
    out = attend(q, k, v, pool, plan, options)
    expected = attend_reference(q, k_pool, v_pool, batch, options)
    return float((out - expected).abs().max() / expected.abs().max().clamp(min=1))


@pytest.mark.parametrize("window", [None, 1, 20, 63, 64, 65, 100])
def test_many_new_tokens_over_a_shared_prefix(window: int | None) -> None:
    assert error(level_forest((1, 2), (70, 75), num_queries=70), window=window) < 1e-6


@pytest.mark.parametrize("group", [1, 3, 5, 6, 7, 16])
def test_groups_fill_a_tile_with_whole_rows(group: int) -> None:
    assert error(level_forest((1, 1), (33, 70), num_queries=66), heads=group) < 1e-6


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 224, 256])
def test_any_head_dim(dim: int) -> None:
    assert error(level_forest((1, 2), (33, 34), num_queries=33), dim=dim) < 1e-6


def test_soft_cap_and_sinks() -> None:
    batch = level_forest((1, 2), (40, 40), num_queries=40)
    assert error(batch, soft_cap=15.0, sinks=torch.randn(2)) < 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_extending_beside_decoding(seed: int) -> None:
    """Some branches pass the limit and some do not: each row is written by exactly one kernel."""
    rng = np.random.default_rng(seed)
    batch = random_forest(rng, max_queries=60, max_branches=6, longest=90)
    batch.branch_num_queries[0] = 1
    first = int(batch.branch_segment[0])
    batch.branch_query_start[0] = batch.segment_start[first] + len(batch.segment_slots[first]) - 1
    assert error(batch) < 1e-6


def test_a_cold_prompt_alone() -> None:
    assert error(level_forest((1,), (130,), num_queries=130)) < 1e-6
