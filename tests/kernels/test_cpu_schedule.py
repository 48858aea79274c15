"""The calls a layer makes on the CPU: each row sees each key of its own exactly once."""

from __future__ import annotations

from collections import defaultdict
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.kernels.attention import plan_attention
from radixlang.kernels.cpu.backend import CpuBackend, cpu_schedule
from radixlang.kernels.cpu.calls import Causal, Full, Group, Keys, Masked, Unit
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.reference.attention import slots_seen
from radixlang.kernels.tools.bench_shapes import without_sharing
from radixlang.kernels.tools.forests import level_forest, random_forest


def slots_of(keys: Keys) -> np.ndarray:
    assert keys.length > 0, "torch's flash call ends the process over no keys at all"
    if keys.index is None:
        return keys.start + np.arange(keys.length)
    return keys.index.numpy()


def visible(unit: Unit) -> list[tuple[int, np.ndarray]]:
    """(ranked row, slots it sees) for every row of a unit."""
    match unit:
        case Full(begin, end, keys):
            return [(row, slots_of(keys)) for row in range(begin, end)]
        case Causal(begin, end, keys):
            assert end - begin == keys.length
            return [(row, slots_of(keys)[: row - begin + 1]) for row in range(begin, end)]
        case Masked(begin, end, keys, mask, blind):
            seen = (mask == 0).numpy()
            assert (seen.any(axis=1) == (True if blind is None else ~blind.numpy())).all()
            return [(row, slots_of(keys)[seen[row - begin]]) for row in range(begin, end)]
        case Group():
            return visible_to_group(unit)


def visible_to_group(unit: Group) -> list[tuple[int, np.ndarray]]:
    table = unit.index.numpy().reshape(unit.num_members, unit.length)
    size = (unit.num_members, unit.num_queries, unit.length)
    mask = unit.mask(torch.float32, 1)
    seen = np.ones(size, dtype=np.bool_) if mask is None else (mask[:, 0] == 0).numpy()
    count = unit.num_members * unit.num_queries
    rows = unit.begin + np.arange(count) if unit.query_rows is None else unit.query_rows.numpy()
    real = np.arange(count) if unit.real is None else unit.real.numpy()
    members = np.repeat(np.arange(unit.num_members), unit.num_queries)
    seen = np.broadcast_to(seen, size).reshape(count, unit.length)
    return [(int(rows[at]), table[members[at]][seen[at]]) for at in real.tolist()]


def coverage(plan: AttentionPlan, window: int | None) -> list[list[int]]:
    """Slots that the schedule gives every flat row."""
    schedule = cpu_schedule(plan, window)
    found: dict[int, list[int]] = defaultdict(list)
    for unit in (*schedule.first, *schedule.rest):
        for row, slots in visible(unit):
            found[row] += slots.tolist()
    order = plan.row_order
    flat = range(plan.num_tokens) if order is None else order.tolist()
    by_flat = {token: found[row] for row, token in enumerate(flat)}
    return [by_flat[token] for token in range(plan.num_tokens)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(min_value=0, max_value=2**32 - 1),
    queries=st.sampled_from([1, 1, 4, 60]),
    window=st.sampled_from([None, None, 1, 5, 64, 300]),
    deterministic=st.booleans(),
    quantized=st.booleans(),
    spare_bytes=st.sampled_from([0, 1 << 16]),
    steps=st.sampled_from([0, 0, 3]),
)
def test_every_row_sees_every_key_once(
    seed: int,
    queries: int,
    window: int | None,
    deterministic: bool,
    quantized: bool,
    spare_bytes: int,
    steps: int,
) -> None:
    rng = np.random.default_rng(seed)
    batch = random_forest(rng, max_queries=queries, longest=900, quantized=quantized)
    with patch.object(CpuBackend, "spare_bytes", spare_bytes):
        plan = plan_attention(
            batch, num_heads=4, num_kv_heads=2, head_dim=64, deterministic=deterministic
        )
    coverage(plan, window)  # what advances is a schedule that was in use
    for step in range(steps if plan.is_decode else 0):
        slots = 10**6 + step * plan.num_branches + np.arange(plan.num_branches, dtype=np.int32)
        for branch, segment in enumerate(batch.branch_segment.tolist()):
            own = batch.segment_slots[segment]
            batch.segment_slots[segment] = np.append(own, slots[branch])  # type: ignore[index]
        batch.branch_query_start[:] += 1
        plan.advance(slots)
    assert [sorted(slots) for slots in coverage(plan, window)] == [
        sorted(slots) for slots in slots_seen(batch, window)
    ]


def test_tails_are_read_in_place_as_long_as_they_grow_evenly() -> None:
    plan = plan_attention(level_forest((1, 4), (1000, 1)), num_heads=4, num_kv_heads=2, head_dim=64)
    own = plan.host_new_slots.astype(np.int32)
    found, expected = [], []
    for new in (own + 4, own + 8, own + 12, own + np.array([16, 16, 16, 17]), own + 20):
        cpu_schedule(plan, None)
        plan.advance(new)
        (group,) = cpu_schedule(plan, None).first
        assert isinstance(group, Group)
        found.append(group.grid)
        expected.append(new.tolist())
    assert found == [(int(own[0]), 1, 4)] * 3 + [None] * 2
    assert group.index.numpy().reshape(4, 6)[:, 1:].T.tolist() == expected


@pytest.mark.parametrize(
    ("length", "sizes"),
    [(200, [16]), (1500, [15, 1]), (5000, [1])],
    ids=["one call for all", "padding would cost more", "long enough to be read in place"],
)
def test_a_draft_shares_the_call_of_the_others_while_that_costs_less(
    length: int, sizes: list[int]
) -> None:
    batch = level_forest((16,), (length,))
    batch.branch_num_queries[5] += 2
    batch.branch_query_start[5] -= 2
    plan = plan_attention(batch, num_heads=4, num_kv_heads=2, head_dim=64)
    first = cpu_schedule(plan, None).first
    groups = [unit for unit in first if isinstance(unit, Group)]
    assert sorted((group.num_members for group in groups), reverse=True) == sizes
    assert max(group.num_queries for group in groups) == 3
    assert [sorted(s) for s in coverage(plan, None)] == [sorted(s) for s in slots_seen(batch, None)]


@pytest.mark.parametrize("counts", [(1,), (8,), (32,)])
@pytest.mark.parametrize("length", [300, 2100])
def test_a_tree_without_sharing_makes_the_calls_of_sharing_off(
    counts: tuple[int], length: int
) -> None:
    """So it cannot be slower: what times differ by there is noise."""
    batch = level_forest(counts, (length,))
    schedules = [
        cpu_schedule(plan_attention(which, num_heads=9, num_kv_heads=3, head_dim=64), None)
        for which in (batch, without_sharing(batch))
    ]
    shared, apart = (
        [(type(unit), getattr(unit, "grid", None), call) for unit, call in schedule.planned_first]
        for schedule in schedules
    )
    assert shared == apart
    assert [schedule.rest for schedule in schedules] == [[], []]
    assert schedules[0].alone == schedules[1].alone
