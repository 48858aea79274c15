"""Forests to attend over: by levels for benchmarks, random ones for tests, and their pools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.plan.tree_batch import TreeBatch


def level_forest(
    counts: Sequence[int], lengths: Sequence[int], *, num_queries: int = 1
) -> TreeBatch:
    """A tree by levels: counts[i] nodes of lengths[i] tokens, spread evenly over the level above.

    The last level is the branches, whose last `num_queries` tokens are new. Slots are in order,
    so every node is one run.
    """
    parents: list[int] = []
    starts: list[int] = []
    level: list[int] = []
    if len(counts) != len(lengths):
        raise ValueError(f"{len(counts)} levels have {len(lengths)} lengths")
    for depth, count in enumerate(counts):
        above, level = level, list(range(len(parents), len(parents) + count))
        for index in range(count):
            parent = above[index * len(above) // count] if above else -1
            parents.append(parent)
            starts.append(starts[parent] + lengths[depth - 1] if parent >= 0 else 0)
    sizes = np.repeat(np.asarray(lengths), np.asarray(counts))
    slots = np.split(np.arange(sizes.sum(), dtype=np.int32), np.cumsum(sizes)[:-1])
    branches = np.array(level, dtype=np.int32)
    start = np.array(starts, dtype=np.int32)
    return TreeBatch(
        segment_slots=slots,
        segment_parent=np.array(parents, dtype=np.int32),
        segment_start=start,
        branch_segment=branches,
        branch_query_start=start[branches] + lengths[-1] - num_queries,
        branch_num_queries=np.full(len(level), num_queries, dtype=np.int32),
    )


def random_forest(
    rng: np.random.Generator,
    *,
    max_queries: int = 1,
    max_nodes: int = 6,
    max_branches: int = 8,
    longest: int = 200,
    quantized: bool = False,
) -> TreeBatch:
    """Several roots, empty and tiny segments, long runs and scattered slots, branches anywhere.

    Slots have gaps between segments, so that some belong to nobody.
    """
    parents: list[int] = []
    starts: list[int] = []
    slots: list[NDArray[np.int32]] = []
    cold: list[bool] = []
    cursor = int(rng.integers(0, 5))

    def add(parent: int, length: int, is_cold: bool) -> int:
        nonlocal cursor
        run = cursor + np.arange(length, dtype=np.int32)
        slots.append(run if rng.random() < 0.5 else rng.permutation(run).astype(np.int32))
        cursor += length + int(rng.integers(0, 4))
        starts.append(0 if parent < 0 else starts[parent] + len(slots[parent]))
        parents.append(parent)
        cold.append(is_cold)
        return len(parents) - 1

    num_nodes = int(rng.integers(1, max_nodes + 1))
    for index in range(num_nodes):
        parent = int(rng.integers(-1, index)) if index else -1
        length = int(rng.choice([0, 1, 3, 17, 40, longest]))
        add(parent, length, quantized and rng.random() < 0.5)
    branches, queries = [], []
    for _ in range(int(rng.integers(1, max_branches + 1))):
        queries.append(int(rng.integers(1, max_queries + 1)))
        before = int(rng.choice([0, 1, 5, 30, longest]))
        branches.append(add(int(rng.integers(-1, num_nodes)), before + queries[-1], False))
    start, leaf = np.array(starts, dtype=np.int32), np.array(branches, dtype=np.int32)
    counts = np.array(queries, dtype=np.int32)
    ends = start[leaf] + np.array([len(slots[b]) for b in branches], dtype=np.int32)
    return TreeBatch(
        segment_slots=slots,
        segment_parent=np.array(parents, dtype=np.int32),
        segment_start=start,
        branch_segment=leaf,
        branch_query_start=ends - counts,
        branch_num_queries=counts,
        segment_quantized=np.array(cold, dtype=np.bool_) if quantized else None,
    )


def new_slots_of(batch: TreeBatch) -> NDArray[np.int32]:
    """Slots of the new tokens in flat order."""
    tails = zip(batch.branch_segment.tolist(), batch.branch_num_queries.tolist(), strict=True)
    return np.concatenate([batch.segment_slots[s][-n:] for s, n in tails])


def poisoned_pool(
    batch: TreeBatch,
    num_kv_heads: int,
    head_dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    spare: int = 64,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Keys and values [num_slots, num_kv_heads, head_dim]: NaN in every slot nobody owns."""
    owned = np.concatenate(list(batch.segment_slots)).astype(np.int64)
    shape = (int(owned.max()) + 1 + spare, num_kv_heads, head_dim)
    generator = torch.Generator().manual_seed(seed)
    planes = []
    for _ in range(2):
        plane = torch.full(shape, torch.nan, dtype=dtype)
        values = torch.randn((len(owned), *shape[1:]), generator=generator)
        plane[torch.from_numpy(owned)] = values.to(dtype)
        planes.append(plane)
    return planes[0], planes[1]
