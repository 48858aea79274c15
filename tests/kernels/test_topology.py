"""The reduction to nodes: every branch still reads its own path, and reads nothing twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.kernels.plan.topology import GRID, Topology, build_topology, grow
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import path_of
from radixlang.kernels.tools.forests import level_forest, random_forest

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def path_by_nodes(topology: Topology, rank: int) -> tuple[list[int], list[int]]:
    """Slots and positions that the nodes give the branch of a rank."""
    slots, positions = [], []
    for node in range(len(topology.node_length)):
        if topology.node_first[node] <= rank < topology.node_last[node]:
            own = topology.node_slots(node)
            slots += own.tolist()
            positions += (int(topology.node_start[node]) + np.arange(len(own))).tolist()
    return slots, positions


@settings(max_examples=80, deadline=None, derandomize=True)
@given(seed=SEEDS, deterministic=st.booleans(), quantized=st.booleans())
def test_nodes_give_every_branch_its_path_once(
    seed: int, deterministic: bool, quantized: bool
) -> None:
    batch = random_forest(np.random.default_rng(seed), max_queries=5, quantized=quantized)
    topology = build_topology(batch, deterministic=deterministic)
    for rank, branch in enumerate(topology.branch_order.tolist()):
        slots, positions = path_of(batch, int(batch.branch_segment[branch]))
        got_slots, got_positions = path_by_nodes(topology, rank)
        order = np.argsort(got_positions, kind="stable")
        assert np.array(got_slots)[order].tolist() == slots.tolist()
        assert np.array(got_positions)[order].tolist() == positions.tolist()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=SEEDS)
def test_parents_come_first_and_lead_to_the_root(seed: int) -> None:
    topology = build_topology(random_forest(np.random.default_rng(seed), max_nodes=12))
    for node, parent in enumerate(topology.node_parent.tolist()):
        assert parent < node
        if parent >= 0:
            end = topology.node_start[parent] + topology.node_length[parent]
            assert end == topology.node_start[node]
            assert topology.node_first[parent] <= topology.node_first[node]
            assert topology.node_last[node] <= topology.node_last[parent]


def chain(*lengths: int) -> TreeBatch:
    """One branch whose path is cut into many segments."""
    starts = np.cumsum([0, *lengths[:-1]]).astype(np.int32)
    slots = np.split(np.arange(sum(lengths), dtype=np.int32), np.cumsum(lengths)[:-1])
    count = len(lengths)
    return TreeBatch(
        slots,
        np.arange(-1, count - 1, dtype=np.int32),
        starts,
        np.array([count - 1], dtype=np.int32),
        np.array([sum(lengths) - 1], dtype=np.int32),
        np.array([1], dtype=np.int32),
    )


def test_a_chain_with_one_branch_is_one_node() -> None:
    topology = build_topology(chain(100, 0, 7, 300, 1))
    assert topology.node_length.tolist() == [408]
    assert topology.node_slots(0).tolist() == list(range(408))


@pytest.mark.parametrize(("length", "nodes"), [(16, 3), (17, 4)])
def test_a_short_shared_node_moves_into_its_children(length: int, nodes: int) -> None:
    topology = build_topology(level_forest((1, 3), (length, 40)))
    assert len(topology.node_length) == nodes


def test_segments_without_a_branch_are_dropped() -> None:
    batch = level_forest((1, 4), (100, 5))
    only = TreeBatch(
        batch.segment_slots, batch.segment_parent, batch.segment_start,
        batch.branch_segment[:1], batch.branch_query_start[:1], batch.branch_num_queries[:1],
    )  # fmt: skip
    assert build_topology(only).node_length.tolist() == [105]


def test_deterministic_borders_lie_on_the_grid() -> None:
    topology = build_topology(level_forest((1, 2, 4), (700, 400, 9)), deterministic=True)
    assert all(start % GRID == 0 for start in topology.node_start.tolist())
    assert topology.node_length.sum() < 4 * 1109, "nothing is shared any more"


def test_rows_are_ranked_depth_first_with_a_way_back() -> None:
    batch = level_forest((2, 4), (60, 30), num_queries=2)
    shuffled = TreeBatch(
        batch.segment_slots, batch.segment_parent, batch.segment_start,
        batch.branch_segment[[0, 2, 1, 3]], batch.branch_query_start[[0, 2, 1, 3]],
        batch.branch_num_queries,
    )  # fmt: skip
    permutation = build_topology(shuffled).row_permutation()
    assert permutation is not None
    assert permutation.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert build_topology(batch).row_permutation() is None


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=SEEDS, steps=st.integers(min_value=1, max_value=5))
def test_growing_equals_building_anew(seed: int, steps: int) -> None:
    batch = random_forest(np.random.default_rng(seed), max_queries=1)
    before = build_topology(batch)
    extra = 10_000 + np.arange(before.num_branches * steps, dtype=np.int32).reshape(-1, steps)
    after = grow(before, extra)
    for rank in range(before.num_branches):
        slots, positions = path_by_nodes(before, rank)
        got_slots, got_positions = path_by_nodes(after, rank)
        assert sorted(got_slots) == sorted(slots + extra[rank].tolist())
        assert max(got_positions) == max(positions) + steps
    assert (after.query_start == before.query_start + steps).all()
