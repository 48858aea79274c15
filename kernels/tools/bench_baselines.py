"""What shared-prefix attention is measured against: the same rows by other means."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.library import Library, load
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import path_of
from radixlang.kernels.tools.bench_shapes import Shape, without_sharing

Run = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class BenchCase:
    """A shape with its tensors. The pool already holds the new tokens."""

    shape: Shape
    batch: TreeBatch
    q: Tensor  # [num_tokens, num_heads, head_dim]
    pool: LayerKV
    paths: list[Tensor]  # slots of each branch

    @property
    def scale(self) -> float:
        return float(self.shape.head_dim**-0.5)


def make_case(shape: Shape, dtype: torch.dtype, device: torch.device) -> BenchCase:
    """Random keys, values and queries for a shape."""
    batch = shape.batch()
    num_slots = int(max(slots[-1] for slots in batch.segment_slots)) + 1
    kv = (num_slots, shape.heads[1], shape.head_dim)
    generator = torch.Generator(device).manual_seed(0)
    k, v = (torch.randn(kv, generator=generator, device=device).to(dtype) for _ in range(2))
    num_tokens = int(batch.branch_num_queries.sum())
    q = torch.randn(
        (num_tokens, shape.heads[0], shape.head_dim), generator=generator, device=device
    )
    pool = _quantize(batch, k, v) if shape.quantized else (batch, LayerKV(k, v))
    paths = [path_of(batch, int(leaf))[0].to(device) for leaf in batch.branch_segment]
    return BenchCase(shape, pool[0], q.to(dtype), pool[1], paths)


def _quantize(batch: TreeBatch, k: Tensor, v: Tensor) -> tuple[TreeBatch, LayerKV]:
    """Everything above the tails moves to int8 planes."""
    import dataclasses

    scales = [plane.float().abs().amax(-1) / 127 for plane in (k, v)]
    cold = [
        (plane / scale[..., None]).round().to(torch.int8)
        for plane, scale in zip((k, v), scales, strict=True)
    ]
    above = np.ones(len(batch.segment_slots), dtype=np.bool_)
    above[batch.branch_segment] = False
    pool = LayerKV(k, v, cold[0], cold[1], scales[0], scales[1])
    return dataclasses.replace(batch, segment_quantized=above), pool


@cache
def native_library() -> Library | None:
    """The native library where the runtime keeps it, by default."""
    kept = Path.home() / ".cache" / "radixlang" / "native"
    return load(Path(os.environ.get("RADIXLANG_NATIVE") or kept))


def ours(case: BenchCase, *, sharing: bool = True, deterministic: bool = False) -> Run:
    """Plan once, then write and attend as a layer does."""
    shape, device = case.shape, case.q.device
    batch = case.batch if sharing else without_sharing(case.batch)
    plan = plan_attention(
        batch, num_heads=shape.heads[0], num_kv_heads=shape.heads[1], head_dim=shape.head_dim,
        device=device, deterministic=deterministic, library=native_library(),
    )  # fmt: skip
    k, v = case.pool.k[plan.new_slots], case.pool.v[plan.new_slots]
    return lambda: attend(case.q, k, v, case.pool, plan, AttentionOptions(case.scale))


def gather_and_sdpa(case: BenchCase) -> Run:
    """One branch after another: gather its path from the pool, then torch's attention."""
    count = case.shape.num_queries

    def run() -> Tensor:
        outs = []
        for branch, path in enumerate(case.paths):
            q = case.q[branch * count : (branch + 1) * count].transpose(0, 1)[None]
            k, v = (plane[path].transpose(0, 1)[None] for plane in (case.pool.k, case.pool.v))
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=_bottom_right(count, len(path), q), enable_gqa=True
            )
            outs.append(out[0].transpose(0, 1))
        return torch.cat(outs)

    return run


def _bottom_right(count: int, length: int, like: Tensor) -> Tensor | None:
    """New tokens see each other causally and everything before; one alone needs no mask."""
    if count == 1:
        return None
    row = torch.arange(length - count, length, device=like.device)[:, None]
    visible = torch.arange(length, device=like.device)[None, :] <= row
    return torch.zeros(visible.shape, dtype=like.dtype, device=like.device).masked_fill(
        ~visible, -torch.inf
    )


def batched_sdpa(case: BenchCase) -> Run | None:
    """The best layout without sharing: every path copied out beforehand (not timed), contiguous
    by head, and one call with the heads of a group as rows. Decode only."""
    heads, kv_heads = case.shape.heads
    dim, index = case.shape.head_dim, torch.stack(case.paths)
    if case.shape.num_queries > 1:
        return None
    k, v = (plane[index].transpose(1, 2).contiguous() for plane in (case.pool.k, case.pool.v))
    q = case.q.view(-1, kv_heads, heads // kv_heads, dim)
    return lambda: F.scaled_dot_product_attention(q, k, v).reshape(-1, heads, dim)


def flex_attention(case: BenchCase) -> Run:
    """torch's FlexAttention, compiled, over the whole pool with a mask of who owns which slot."""
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as flex

    device, count = case.q.device, case.shape.num_queries
    num_slots = len(case.pool.k)
    last = torch.full((len(case.paths), num_slots), num_slots, device=device)
    for branch, path in enumerate(case.paths):
        last[branch, path] = torch.arange(len(path), device=device)
    length = len(case.paths[0])

    def owned(batch: Tensor, head: Tensor, row: Tensor, slot: Tensor) -> Tensor:
        return last[row // count, slot] <= length - count + row % count

    mask = create_block_mask(owned, None, None, len(case.q), num_slots, device=str(device))
    compiled = torch.compile(flex)
    q = case.q.transpose(0, 1)[None]
    k, v = case.pool.k.transpose(0, 1)[None], case.pool.v.transpose(0, 1)[None]

    def run() -> Tensor:
        out: Tensor = compiled(q, k, v, block_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1)

    return run
