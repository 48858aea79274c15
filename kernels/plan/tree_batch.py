"""What attention is asked to read: the forest of one step, checked before anything is planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from radixlang.kernels.plan.page_limits import PageLimits


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """The forest one step attends over, parents before children.

    A branch's last segment is its private tail: a leaf that belongs to this branch alone and ends
    with the slots of the branch's new tokens. Flat rows are the new tokens in branch order.
    """

    segment_slots: Sequence[NDArray[np.int32]]  # per segment: KV slots in position order
    segment_parent: NDArray[np.int32]  # [num_segments], -1 for roots
    segment_start: NDArray[np.int32]  # [num_segments], position of the first token
    branch_segment: NDArray[np.int32]  # [num_branches], the private tail
    branch_query_start: NDArray[np.int32]  # [num_branches], position of the first new token
    branch_num_queries: NDArray[np.int32]  # [num_branches], number of new tokens (1: decode)
    segment_quantized: NDArray[np.bool_] | None = None  # [num_segments], slots of int8 planes
    limits: PageLimits | None = None  # of rows; None: every row reads all of its path


def chain(cuts: Sequence[int], start: int, *, quantized: bool = False) -> TreeBatch:
    """One branch whose slots are its positions.

    Segments lie between the cuts (0 first), tokens from position `start` on are new. With
    `quantized`, all segments above the tail are read from the int8 planes.
    """
    num_segments = len(cuts) - 1
    return TreeBatch(
        segment_slots=[np.arange(a, b, dtype=np.int32) for a, b in pairwise(cuts)],
        segment_parent=np.arange(-1, num_segments - 1, dtype=np.int32),
        segment_start=np.array(cuts[:-1], np.int32),
        branch_segment=np.array([num_segments - 1], np.int32),
        branch_query_start=np.array([start], np.int32),
        branch_num_queries=np.array([cuts[-1] - start], np.int32),
        segment_quantized=np.arange(num_segments) < num_segments - 1 if quantized else None,
    )


def check_batch(batch: TreeBatch) -> None:
    """Raise ValueError where the batch contradicts itself, naming the segment or branch."""
    parent, start = batch.segment_parent, batch.segment_start
    num_segments, num_branches = len(batch.segment_slots), len(batch.branch_segment)
    if len(parent) != num_segments or len(start) != num_segments:
        raise ValueError(
            f"{num_segments} segments need as many parents and starts; "
            f"got {len(parent)} and {len(start)}"
        )
    if num_branches == 0:
        raise ValueError("a batch needs at least one branch; skip the step when none is running")
    index = np.arange(num_segments)
    _refuse((parent >= index) | (parent < -1), "segment {} comes before its parent; sort by depth")
    length = np.array([len(slots) for slots in batch.segment_slots], dtype=np.int64)
    end = np.where(parent >= 0, (start + length)[parent], start)
    _refuse(end != start, "segment {} does not start where its parent ends; check segment_start")
    _check_branches(batch, length)
    if batch.limits is not None:
        _check_limits(batch.limits, int(batch.branch_num_queries.sum()))


def _check_limits(limits: PageLimits, num_rows: int) -> None:
    pages, mass = limits.top_pages, limits.top_mass
    if pages.shape != (num_rows,) or mass.shape != (num_rows,):
        raise ValueError(
            f"{num_rows} rows need as many limits; got {pages.shape} top_pages and {mass.shape} "
            "top_mass"
        )
    _refuse(pages < 0, "the top_pages of row {} is below 0")
    _refuse(~((mass >= 0) & (mass < 1)), "the top_mass of row {} is not from 0 to below 1")
    _refuse((pages > 0) & (mass > 0), "row {} has both top_pages and top_mass; give one")


def _check_branches(batch: TreeBatch, length: NDArray[np.int64]) -> None:
    leaf, queries = batch.branch_segment, batch.branch_num_queries
    _refuse((leaf < 0) | (leaf >= len(length)), "branch {} names a segment that does not exist")
    shared = np.bincount(leaf, minlength=len(length))
    above = batch.segment_parent[batch.segment_parent >= 0]
    _refuse(shared[leaf] > 1, "branch {} shares its tail; give every branch a segment of its own")
    _refuse(
        np.bincount(above, minlength=len(length))[leaf] > 0,
        "the tail of branch {} has children; the tail must be a leaf",
    )
    if batch.segment_quantized is not None:
        _refuse(
            batch.segment_quantized[leaf],
            "the tail of branch {} is quantised; new tokens are written exactly, so quantise "
            "segments above the tail only",
        )
    _refuse(
        (queries < 1) | (queries > length[leaf]),
        "branch {} has no new token in its tail; write the new tokens' slots at the tail's end",
    )
    _refuse(
        batch.branch_query_start + queries != batch.segment_start[leaf] + length[leaf],
        "the new tokens of branch {} do not end where its tail ends; check branch_query_start",
    )


def _refuse(bad: NDArray[np.bool_], message: str) -> None:
    if bad.any():
        raise ValueError(message.format(int(np.flatnonzero(bad)[0])))
