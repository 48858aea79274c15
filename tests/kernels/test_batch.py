"""A batch that contradicts itself is refused by name, before anything is read."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from radixlang.kernels.attention import plan_attention
from radixlang.kernels.plan.tree_batch import TreeBatch, check_batch
from radixlang.kernels.tools.forests import level_forest


def good() -> TreeBatch:
    return level_forest((1, 3), (10, 4))


def changed(**fields: object) -> TreeBatch:
    return dataclasses.replace(good(), **fields)  # type: ignore[arg-type]


BAD = {
    "parent-after-child": (changed(segment_parent=np.array([1, -1, 0, 0])), "before its parent"),
    "gap-in-positions": (changed(segment_start=np.array([0, 10, 11, 10])), "segment 2 does not"),
    "shared-tail": (changed(branch_segment=np.array([1, 1, 3])), "branch 0 shares its tail"),
    "tail-with-children": (changed(branch_segment=np.array([0, 2, 3])), "has children"),
    "no-new-token": (changed(branch_num_queries=np.array([1, 0, 1])), "branch 1 has no new token"),
    "more-new-than-tail": (changed(branch_num_queries=np.array([1, 9, 1])), "branch 1 has no new"),
    "wrong-position": (changed(branch_query_start=np.array([13, 13, 12])), "of branch 2 do not"),
    "unknown-segment": (changed(branch_segment=np.array([1, 2, 9])), "branch 2 names a segment"),
    "lengths-differ": (changed(segment_parent=np.array([-1, 0])), "got 2 and 4"),
    "no-branch": (changed(branch_segment=np.zeros(0, np.int32)), "at least one branch"),
}


@pytest.mark.parametrize("case", BAD)
def test_contradictions_are_refused_by_name(case: str) -> None:
    batch, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        check_batch(batch)


def test_a_good_batch_passes() -> None:
    batch = good()
    check_batch(batch)
    assert len(batch.branch_segment) == 3


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 2), (0, 1), (4, 0)])
def test_heads_must_divide(heads: int, kv_heads: int) -> None:
    with pytest.raises(ValueError, match="must be a multiple"):
        plan_attention(good(), num_heads=heads, num_kv_heads=kv_heads, head_dim=64)


def test_a_quantised_tail_is_refused() -> None:
    cold = changed(segment_quantized=np.array([True, False, True, False]))
    with pytest.raises(ValueError, match="tail of branch 1 is quantised"):
        check_batch(cold)
