"""The forest of one step, reduced to the nodes that attention reads.

Knows nothing of tensors, devices or tiles: everything here is host NumPy. Chains of segments with
the same set of branches below them become one node, empty and unused segments disappear, and a
node too short to be worth a read of its own moves into its children.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from radixlang.kernels.plan.tree_batch import TreeBatch

SHORT_NODE = 16  # a shared node up to this long is cheaper inside its children
GRID = 512  # deterministic splits lie on multiples of this position


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes in parents-first order; branches ranked depth first; rows are new tokens by rank."""

    slots: NDArray[np.int32]  # [num_tokens_stored]; each node's tokens contiguous
    node_offset: NDArray[np.int64]  # [num_nodes] first token of the node in `slots`
    node_length: NDArray[np.int64]  # [num_nodes]
    node_start: NDArray[np.int64]  # [num_nodes] position of its first token
    node_first: NDArray[np.int64]  # [num_nodes] rank of the first branch below
    node_last: NDArray[np.int64]  # [num_nodes] one past the rank of the last
    node_parent: NDArray[np.int64]  # [num_nodes] nearest node above, -1 for none
    node_quantized: NDArray[np.bool_]  # [num_nodes] slots index the int8 planes
    branch_order: NDArray[np.int64]  # [num_branches] flat branch of each rank
    branch_node: NDArray[np.int64]  # [num_branches] the private node of each rank
    query_start: NDArray[np.int64]  # [num_branches] by rank
    num_queries: NDArray[np.int64]  # [num_branches] by rank
    row_offset: NDArray[np.int64]  # [num_branches + 1] rows of rank r: row_offset[r : r + 2]

    @property
    def num_branches(self) -> int:
        return len(self.branch_order)

    @property
    def num_rows(self) -> int:
        return int(self.row_offset[-1])

    def node_slots(self, node: int) -> NDArray[np.int32]:
        """Slots of one node in position order."""
        offset = int(self.node_offset[node])
        return self.slots[offset : offset + int(self.node_length[node])]

    def row_positions(self) -> NDArray[np.int64]:
        """Position of every row, rows in rank order."""
        return ranges(self.query_start, self.num_queries)

    def row_permutation(self) -> NDArray[np.int64] | None:
        """Flat row of every row in rank order, or None when they are in the same order."""
        order = self.branch_order
        if np.array_equal(order, np.arange(len(order))):
            return None
        flat_counts = np.empty_like(self.num_queries)
        flat_counts[order] = self.num_queries
        flat_offset = np.cumsum(flat_counts) - flat_counts
        return ranges(flat_offset[order], self.num_queries)


def build_topology(batch: TreeBatch, *, deterministic: bool = False) -> Topology:
    """Reduce a checked batch to its nodes. With `deterministic`, node borders lie on the grid."""
    parent = batch.segment_parent.tolist()
    quantized = (
        [False] * len(parent)
        if batch.segment_quantized is None
        else batch.segment_quantized.tolist()
    )
    leaf = batch.branch_segment.tolist()
    counts, least = _count_branches(parent, leaf)
    order = _depth_first(least)
    node_of, nodes, first = _coalesce(order, parent, counts, quantized)
    lengths = np.array([len(slots) for slots in batch.segment_slots], dtype=np.int64)
    owner = np.array(node_of, dtype=np.int64)
    keep = owner >= 0
    own = np.bincount(owner[keep], weights=lengths[keep], minlength=len(nodes)).astype(np.int64)
    heads = np.array([segment for segment, _ in nodes], dtype=np.int64)
    node_parent = [above for _, above in nodes]
    node_count = np.array([counts[segment] for segment, _ in nodes], dtype=np.int64)
    node_q = np.array([quantized[segment] for segment, _ in nodes], dtype=np.bool_)
    head_start = batch.segment_start[heads].astype(np.int64)
    carry, cut = _carries(
        own, head_start, node_parent, node_count, node_q, batch, on_grid=deterministic
    )
    sequence = np.argsort(owner, kind="stable")[np.count_nonzero(~keep) :]
    parts = [batch.segment_slots[s] for s in sequence.tolist()]
    own_slots = np.concatenate(parts).astype(np.int32, copy=False)
    slots, offset = _lay_out(own_slots, own, carry, node_parent)
    nodes_of = (heads, first, node_parent, node_count, node_q, owner)
    return _finish(batch, slots, offset, own, carry, cut, *nodes_of)


def grow(topology: Topology, extra: NDArray[np.int32]) -> Topology:
    """The topology after decoding: every tail with its row of `extra` [num_branches, steps]."""
    steps = extra.shape[1]
    added = np.zeros(len(topology.node_length), dtype=np.int64)
    added[topology.branch_node] = steps
    ends = topology.node_offset[topology.branch_node] + topology.node_length[topology.branch_node]
    slots = np.insert(topology.slots, np.repeat(ends, steps), extra.reshape(-1))
    starts = np.sort(ends)
    return replace(
        topology,
        slots=slots,
        node_offset=topology.node_offset
        + steps * np.searchsorted(starts, topology.node_offset, side="right"),
        node_length=topology.node_length + added,
        query_start=topology.query_start + steps,
    )


def _count_branches(parent: list[int], leaf: list[int]) -> tuple[list[int], list[int]]:
    """Branches below every segment, and the least flat index among them."""
    counts = [0] * len(parent)
    least = [len(leaf)] * len(parent)
    for branch, segment in enumerate(leaf):
        counts[segment] += 1
        least[segment] = branch
    for segment in range(len(parent) - 1, -1, -1):
        above = parent[segment]
        if above >= 0:
            counts[above] += counts[segment]
            if least[segment] < least[above]:
                least[above] = least[segment]
    return counts, least


def _depth_first(least: list[int]) -> list[int]:
    """Segments so that parents come first and siblings by their first branch."""
    order: list[int] = np.argsort(np.array(least), kind="stable").tolist()
    return order  # stable: ties keep parents first


def _coalesce(
    order: list[int], parent: list[int], counts: list[int], quantized: list[bool]
) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """Node of every segment (-1: unused), (head segment, parent node) and first rank of each."""
    node_of = [-1] * len(order)
    cursor = [0] * (len(order) + 1)  # next free rank below a segment; last: below no segment
    nodes: list[tuple[int, int]] = []
    first: list[int] = []
    for segment in order:
        count = counts[segment]
        if not count:
            continue
        above = parent[segment]
        rank = cursor[segment] = cursor[above]
        cursor[above] = rank + count
        if above < 0:
            up = -1
        else:
            up = node_of[above]
            if counts[above] == count and quantized[above] == quantized[segment]:
                node_of[segment] = up
                continue
        node_of[segment] = len(nodes)
        nodes.append((segment, up))
        first.append(rank)
    return node_of, nodes, first


def _carries(
    own: NDArray[np.int64],
    start: NDArray[np.int64],
    node_parent: list[int],
    node_count: NDArray[np.int64],
    node_q: NDArray[np.bool_],
    batch: TreeBatch,
    *,
    on_grid: bool,
) -> tuple[list[int], list[int]]:
    """Tokens each node takes over from its parent, and tokens each hands down from its end; with
    `on_grid`, just those behind the last border of the grid."""
    num_nodes = len(node_parent)
    lengths, starts, quantized = own.tolist(), start.tolist(), node_q.tolist()
    counts = node_count.tolist()
    rows = int(batch.branch_num_queries.max(initial=1))
    least_child = [1 << 60] * num_nodes  # rows of the smallest child
    pinned = [False] * num_nodes  # has a child of the other precision
    leaf = [True] * num_nodes
    for node, above in enumerate(node_parent):
        if above >= 0:
            leaf[above] = False
            least_child[above] = min(least_child[above], counts[node] * rows)
            pinned[above] = pinned[above] or quantized[node] != quantized[above]
    carry, cut = [0] * num_nodes, [0] * num_nodes
    for node in range(num_nodes):
        above = node_parent[node]
        if above >= 0:
            carry[node] = cut[above]
        if leaf[node] or pinned[node]:
            continue
        total = carry[node] + lengths[node]
        if on_grid:
            cut[node] = min(total, (starts[node] + lengths[node]) % GRID)
        elif total <= max(SHORT_NODE, 2 * least_child[node]):
            cut[node] = total
    return carry, cut


def _lay_out(
    own_slots: NDArray[np.int32], own: NDArray[np.int64], carry: list[int], node_parent: list[int]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """All nodes one after another, each with what it takes over in front of its own."""
    carried = np.array(carry, dtype=np.int64)
    total = own + carried
    offset = np.cumsum(total) - total
    if not carried.any():
        return own_slots, offset
    parts: list[NDArray[np.int32]] = []
    ends, lengths = np.cumsum(own).tolist(), own.tolist()
    for node, left in enumerate(carry):
        above, taken = node_parent[node], []
        while left > 0:
            count = min(left, lengths[above])
            taken.append(own_slots[ends[above] - count : ends[above]])
            left, above = left - count, node_parent[above]
        parts += taken[::-1]
        parts.append(own_slots[ends[node] - lengths[node] : ends[node]])
    return np.concatenate(parts), offset


def _finish(
    batch: TreeBatch,
    slots: NDArray[np.int32],
    offset: NDArray[np.int64],
    own: NDArray[np.int64],
    carry: list[int],
    cut: list[int],
    heads: NDArray[np.int64],
    first: list[int],
    node_parent: list[int],
    node_count: NDArray[np.int64],
    node_q: NDArray[np.bool_],
    owner: NDArray[np.int64],
) -> Topology:
    """Drop what became empty, renumber, and rank the branches."""
    carried = np.array(carry, dtype=np.int64)
    length = own + carried - np.array(cut, dtype=np.int64)
    keep = length > 0
    renumber = np.cumsum(keep) - 1
    firsts = np.array(first, dtype=np.int64)
    branch_rank = firsts[owner[batch.branch_segment]]
    order = np.argsort(branch_rank, kind="stable")
    num_queries = batch.branch_num_queries[order].astype(np.int64)
    return Topology(
        slots=slots,
        node_offset=offset[keep],
        node_length=length[keep],
        node_start=(batch.segment_start[heads].astype(np.int64) - carried)[keep],
        node_first=firsts[keep],
        node_last=(firsts + node_count)[keep],
        node_parent=(
            np.array(node_parent, dtype=np.int64)
            if keep.all()
            else _nearest(node_parent, keep.tolist(), renumber.tolist())
        ),
        node_quantized=node_q[keep],
        branch_order=order.astype(np.int64),
        branch_node=renumber[owner[batch.branch_segment]][order],
        query_start=batch.branch_query_start[order].astype(np.int64),
        num_queries=num_queries,
        row_offset=np.concatenate([[0], np.cumsum(num_queries)]),
    )


def _nearest(parent: list[int], keep: list[bool], renumber: list[int]) -> NDArray[np.int64]:
    """Parents among the nodes that are kept, by their new numbers."""
    above = [-1] * len(parent)  # the nearest kept node at or above each
    kept = []
    for node, up in enumerate(parent):
        over = above[up] if up >= 0 else -1
        above[node] = renumber[node] if keep[node] else over
        if keep[node]:
            kept.append(over)
    return np.array(kept, dtype=np.int64)


def ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenation of arange(start, start + count)."""
    before = np.cumsum(counts) - counts
    ranges: NDArray[np.int64] = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return ranges
