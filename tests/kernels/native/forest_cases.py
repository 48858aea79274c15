"""Forests with their pools and queries, cut and ordered in ways that must not show in a result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.attention import NativeAttentionPlan, NativeKV
from radixlang.kernels.native.library import Library
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import path_of
from radixlang.kernels.tools.forests import poisoned_pool

Options = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A forest, what is in its slots, and the queries of its rows."""

    batch: TreeBatch
    layer_kv: LayerKV
    q: Tensor
    options: Options = field(default_factory=dict)  # of attend

    def attend(self, library: Library, *, num_threads: int = 2) -> Tensor:
        num_heads, head_dim = self.q.shape[1:]
        plan = NativeAttentionPlan(
            library, self.batch,
            num_heads=num_heads, num_kv_heads=self.layer_kv.k.shape[1], head_dim=head_dim,
        )  # fmt: skip
        options = AttentionOptions(**({"scale": head_dim**-0.5} | self.options))
        return plan.attend(NativeKV(self.layer_kv), self.q, options, num_threads=num_threads)


def make_case(
    batch: TreeBatch,
    *,
    heads: tuple[int, int] = (9, 3),
    head_dim: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    **options: Any,
) -> Case:
    """Random keys, values and queries; NaN in slots that nobody owns."""
    num_heads, num_kv_heads = heads
    k, v = poisoned_pool(batch, num_kv_heads, head_dim, dtype=dtype, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    num_rows = int(batch.branch_num_queries.sum())
    q = torch.randn(num_rows, num_heads, head_dim, generator=generator)
    return Case(batch, LayerKV(k, v), q, options)


def quantized_case(case: Case) -> Case:
    """The same with int8 planes for the slots of quantised segments, exact pools poisoned there."""
    cold = case.batch.segment_quantized
    assert cold is not None
    slots = np.concatenate(
        [
            np.empty(0, np.int32),
            *(case.batch.segment_slots[s] for s in np.flatnonzero(cold).tolist()),
        ]
    ).astype(np.int64)
    planes, scales, exact = [], [], []
    for plane in (case.layer_kv.k, case.layer_kv.v):
        scale = plane.float().abs().amax(-1) / 127
        planes.append((plane.float() / scale[..., None]).round().nan_to_num().to(torch.int8))
        scales.append(scale)
        left = plane.clone()
        left[torch.from_numpy(slots)] = torch.nan
        exact.append(left)
    return replace(case, layer_kv=LayerKV(*exact, *planes, *scales))


def dequantized(case: Case) -> LayerKV:
    """Float32 pools that hold what a quantised case's slots stand for."""
    cold = case.batch.segment_quantized
    assert cold is not None
    pools = []
    kv = case.layer_kv
    for exact, plane, scale in ((kv.k, kv.k_int8, kv.k_scale), (kv.v, kv.v_int8, kv.v_scale)):
        assert plane is not None
        assert scale is not None
        pool = exact.float()
        for segment in np.flatnonzero(cold).tolist():
            slots = torch.from_numpy(case.batch.segment_slots[segment].astype(np.int64))
            pool[slots] = plane[slots].float() * scale[slots][..., None]
        pools.append(pool)
    return LayerKV(*pools)


def rows_of(batch: TreeBatch, branch: int) -> slice:
    """Flat rows of one branch."""
    first = int(batch.branch_num_queries[:branch].sum())
    return slice(first, first + int(batch.branch_num_queries[branch]))


def alone(case: Case, branch: int, cuts: list[int] | None = None, queries: int = 0) -> Case:
    """One branch of a forest by itself, its path cut at positions; its last `queries` rows."""
    batch = case.batch
    slots, positions = path_of(batch, int(batch.branch_segment[branch]))
    queries = queries or int(batch.branch_num_queries[branch])
    start, end = int(positions[0]), int(positions[-1]) + 1
    inner = [cut for cut in cuts or [] if start < cut <= end - queries]
    edges = [start, *sorted(set(inner)), end]
    pieces = np.split(slots.numpy().astype(np.int32), [edge - start for edge in edges[1:-1]])
    rows = rows_of(batch, branch)
    single = TreeBatch(
        segment_slots=pieces,
        segment_parent=np.arange(-1, len(pieces) - 1, dtype=np.int32),
        segment_start=np.array(edges[:-1], np.int32),
        branch_segment=np.array([len(pieces) - 1], np.int32),
        branch_query_start=np.array([end - queries], np.int32),
        branch_num_queries=np.array([queries], np.int32),
    )
    return replace(case, batch=single, q=case.q[rows.stop - queries : rows.stop])


def moved(case: Case, seed: int) -> Case:
    """The same tokens in other slots of a larger pool, in random order."""
    old = len(case.layer_kv.k)
    new = torch.from_numpy(np.random.default_rng(seed).permutation(old + 100)[:old])
    pools = []
    for plane in (case.layer_kv.k, case.layer_kv.v):
        pool = torch.full((old + 100, *plane.shape[1:]), torch.nan, dtype=plane.dtype)
        pool[new] = plane
        pools.append(pool)
    order = new.numpy().astype(np.int32)
    slots = [order[segment] for segment in case.batch.segment_slots]
    return replace(case, batch=replace(case.batch, segment_slots=slots), layer_kv=LayerKV(*pools))
