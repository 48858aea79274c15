"""Advancing a decode plan equals planning anew, step by step, in any layout of the new slots."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from radixlang.cache_dir import home
from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.build import find_compiler
from radixlang.kernels.native.library import Library, load
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import attend_reference
from radixlang.kernels.tools.forests import level_forest, new_slots_of, poisoned_pool, random_forest

pytestmark = pytest.mark.usefixtures("nan_filled_memory")


def stepped(batch: TreeBatch, new_slots: np.ndarray) -> TreeBatch:
    """The batch one decode step later."""
    slots = list(batch.segment_slots)
    for branch, segment in enumerate(batch.branch_segment.tolist()):
        slots[segment] = np.append(slots[segment], new_slots[branch]).astype(np.int32)
    return dataclasses.replace(
        batch, segment_slots=slots, branch_query_start=batch.branch_query_start + 1
    )


@pytest.fixture(params=["plain", "native"])
def library(request: pytest.FixtureRequest) -> Library | None:
    """None, and the native library."""
    if request.param == "plain":
        return None
    if find_compiler() is None:
        pytest.skip("there is no C++ compiler")
    return load(home() / "native")


def decode(
    batch: TreeBatch, *, steps: int, window: int | None, by_step: bool, library: Library | None
) -> None:
    """Decode with one advancing plan; compare every step with the reference."""
    count, first = (
        len(batch.branch_segment),
        max(int(s.max(initial=0)) for s in batch.segment_slots),
    )
    k_pool, v_pool = poisoned_pool(batch, 2, 16, spare=count * steps + 1)
    pool = LayerKV(k_pool, v_pool)
    plan = plan_attention(batch, num_heads=6, num_kv_heads=2, head_dim=16, library=library)
    for step in range(steps):
        q, (k, v) = torch.randn(count, 6, 16), torch.randn(2, count, 2, 16)
        out = attend(q, k, v, pool, plan, AttentionOptions(0.25, window=window))
        expected = attend_reference(q, k_pool, v_pool, batch, AttentionOptions(0.25, window=window))
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-6)
        assert plan.positions.tolist() == batch.branch_query_start.tolist()
        order = np.arange(count)
        slots = first + 1 + (step * count + order if by_step else order * steps + step)
        plan.advance(slots.astype(np.int32))
        batch = stepped(batch, slots)


@pytest.mark.parametrize("window", [None, 6, 64])
@pytest.mark.parametrize("by_step", [True, False], ids=["slots-by-step", "slots-by-branch"])
def test_advancing_equals_planning_anew(
    window: int | None, by_step: bool, library: Library | None
) -> None:
    for seed in range(5):
        batch = random_forest(np.random.default_rng(seed))
        decode(batch, steps=5, window=window, by_step=by_step, library=library)


def test_advancing_beyond_the_reserve(library: Library | None) -> None:
    decode(level_forest((1, 3), (40, 5)), steps=140, window=None, by_step=True, library=library)


def test_new_slots_and_positions_are_in_flat_order() -> None:
    batch = random_forest(np.random.default_rng(3), max_queries=4)
    plan = plan_attention(batch, num_heads=2, num_kv_heads=2, head_dim=8)
    assert plan.new_slots.tolist() == new_slots_of(batch).tolist()
    expected = [
        int(start) + i
        for start, count in zip(batch.branch_query_start, batch.branch_num_queries, strict=True)
        for i in range(int(count))
    ]
    assert plan.positions.tolist() == expected
    assert plan.num_branches == len(batch.branch_segment)


def test_only_a_pure_decode_advances() -> None:
    plan = plan_attention(
        level_forest((1, 2), (9, 5), num_queries=2), num_heads=2, num_kv_heads=2, head_dim=8
    )
    with pytest.raises(ValueError, match="build a new plan"):
        plan.advance(np.array([1, 2], dtype=np.int32))


def test_advance_takes_one_slot_a_branch() -> None:
    plan = plan_attention(level_forest((1, 2), (9, 5)), num_heads=2, num_kv_heads=2, head_dim=8)
    with pytest.raises(ValueError, match=r"\[2\]; got shape \(3,\)"):
        plan.advance(np.array([1, 2, 3], dtype=np.int32))
    assert plan.num_steps == 0


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="neither 'native', 'cpu', 'triton' nor"):
        plan_attention(
            level_forest((1,), (9,)), num_heads=2, num_kv_heads=2, head_dim=8, backend="metal"
        )
