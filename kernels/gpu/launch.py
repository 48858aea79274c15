"""Launch the Triton kernels of one layer: partials a tile shape, one merge, one pass for extend."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from radixlang.kernels.gpu.advance_tails import advance_tails
from radixlang.kernels.gpu.append_kv import append_kv
from radixlang.kernels.gpu.layer import AttentionLayer
from radixlang.kernels.gpu.plan.device_plan import EXTEND_AT, ROWS_AT, TOKENS_AT, DevicePlan
from radixlang.kernels.gpu.plan.tiles import block_d
from radixlang.kernels.gpu.plan.work_units import FIELDS
from radixlang.kernels.gpu.rotary_append import rotary_append as rotary_append_kernel
from radixlang.kernels.gpu.tree_attn import extend_attn, option_arguments, tree_attn_partial
from radixlang.kernels.gpu.tree_merge import tree_merge
from radixlang.kernels.layer_kv import LayerKV

MERGE_PARTS = 8  # partials of a row read together


def attend_triton(
    q: Tensor,
    pool: LayerKV,
    plan: DevicePlan,
    layer: AttentionLayer,
    *,
    with_lse: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attend over keys and values already in the pool.

    q [capacity of tokens, num_heads, head_dim], contiguous in its last two dimensions. Returns
    the output and, with `with_lse`, the natural log-sum-exp [tokens, num_heads] without sinks
    (else an empty tensor). Tokens beyond the plan's own are zeros.
    """
    num_tokens, num_heads, dim = q.shape
    _check_queries(q, plan, layer)
    out = torch.empty((num_tokens, num_heads, dim), dtype=q.dtype, device=q.device)
    lse = q.new_empty((num_tokens, num_heads) if with_lse else (0,), dtype=torch.float32)
    parts = max(1, plan.capacity.num_parts)  # float32, whatever the pool holds
    part_out = torch.empty((parts, num_heads, dim), dtype=torch.float32, device=q.device)
    part_lse = torch.empty((parts, num_heads), dtype=torch.float32, device=q.device)
    args = _Args(q, pool, plan, layer, part_out, part_lse, out, lse, with_lse)
    for index in range(len(plan.capacity.lists)):
        _launch_partial(args, index)
    if plan.capacity.extend is not None:
        _launch_extend(args)
    _launch_merge(args)
    return out, lse


@dataclass(frozen=True, slots=True)
class _Args:
    q: Tensor
    pool: LayerKV
    plan: DevicePlan
    layer: AttentionLayer
    part_out: Tensor
    part_lse: Tensor
    out: Tensor
    lse: Tensor
    with_lse: bool

    def shared(self) -> dict[str, object]:
        """Keyword arguments that the partial and the extend kernel share."""
        layer = self.layer
        return {
            "GROUP": layer.group_size,
            "HEAD_DIM": layer.head_dim,
            "BLOCK_D": block_d(layer.head_dim),
            **option_arguments(layer.options, unused=self.lse),
            "WITH_LSE": self.with_lse,
            "UPCAST": interpreting(),  # the interpreter's bf16 arithmetic is wrong, silently
            "PRECISION": dot_precision(self.q.dtype),
        }


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter rather than on a device.

    Asked as `triton.jit` asks when a kernel is defined; `triton.knobs` is there from 3.4 on only.
    """
    return isinstance(append_kv, InterpretedFunction)


def dot_precision(dtype: torch.dtype) -> str:
    """Plain float32 products spill registers on sm_90; three TF32 products do not."""
    return "tf32x3" if dtype == torch.float32 and torch.version.hip is None else "ieee"


def _launch_partial(args: _Args, index: int) -> None:
    plan, pool, views = args.plan, args.pool, args.plan.views
    tile, quantized, room = plan.capacity.lists[index]
    if room == 0:
        return
    planes, scales = _planes(pool, args.lse, quantized)
    heads = args.layer.num_kv_heads
    tree_attn_partial[(room, heads)](
        args.q, *planes, *scales, args.out, args.part_out, args.part_lse, args.lse,
        views["slots"], views["units"][plan.list_starts[index] * FIELDS :],
        plan.header(index), views["row_token"], views["row_pos"], views["row_first"],
        views["row_part"], views["row_count"], args.q.stride(0), planes[0].stride(0), heads,
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, QUANT=quantized, MASKED=plan.capacity.masked,
        RUN_STAGES=tile.num_stages, LIST_STAGES=tile.list_stages,
        num_warps=tile.num_warps, num_stages=tile.num_stages, **args.shared(),
    )  # fmt: skip


def _launch_extend(args: _Args) -> None:
    plan, pool, views = args.plan, args.pool, args.plan.views
    if plan.capacity.extend is None or plan.capacity.extend[1] == 0:
        return
    tile, room, is_run = plan.capacity.extend
    is_run &= args.layer.options.window is None  # three such loops take too many registers
    heads = args.layer.num_kv_heads
    extend_attn[(room, heads)](
        args.q, pool.k, pool.v, args.out, args.lse, views["slots"], views["extend"],
        plan.header(EXTEND_AT), views["row_token"], views["row_pos"], args.q.stride(0),
        pool.k.stride(0), heads, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, RUN=is_run,
        num_warps=tile.num_warps, num_stages=tile.num_stages if is_run else tile.list_stages,
        **args.shared(),
    )  # fmt: skip


def _launch_merge(args: _Args) -> None:
    plan, views = args.plan, args.plan.views
    num_tokens, num_heads, dim = args.out.shape
    if plan.capacity.num_parts == 0 and num_tokens == plan.capacity.num_tokens:
        return  # every row has one part and nothing is padding
    sinks = args.layer.options.sinks
    tree_merge[(num_tokens, num_heads)](
        args.part_out, args.part_lse, args.out, args.lse, args.lse if sinks is None else sinks,
        views["row_token"], views["row_part"], views["row_count"], plan.header(ROWS_AT),
        plan.header(TOKENS_AT), num_heads, HEAD_DIM=dim, BLOCK_D=block_d(dim),
        BLOCK_P=MERGE_PARTS, SINKS=sinks is not None, WITH_LSE=args.with_lse,
        num_warps=4,
    )  # fmt: skip


def append(pool: LayerKV, slots: Tensor, k: Tensor, v: Tensor, *, quantize: bool = False) -> None:
    """Write k, v [tokens, kv_heads, head_dim] at `slots` [tokens] (negative: padding, skipped).

    With `quantize` into the int8 planes, with a scale a token and head; else into k and v.
    """
    planes, scales = _planes(pool, slots, quantize)
    num_tokens, heads, dim = k.shape
    append_kv[(num_tokens, heads)](
        k, v, slots, *planes, *scales, k.stride(0), v.stride(0), planes[0].stride(0), heads,
        HEAD_DIM=dim, BLOCK_D=block_d(dim), QUANT=quantize, num_warps=1,
    )  # fmt: skip


def rotary_append(
    pool: LayerKV,
    slots: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotations: Tensor,
    *,
    halves: bool = False,
    quantize: bool = False,
) -> Tensor:
    """Rotate q and k, write k and v at `slots` as `append` does, and return the rotated q.

    q [tokens, num_heads, head_dim] and k, v [tokens, kv_heads, head_dim], heads contiguous.
    rotations [tokens, rotary_dim / 2] complex64; dimensions beyond rotary_dim stay. Pairs lie
    side by side, or with `halves` half of rotary_dim apart.
    """
    planes, scales = _planes(pool, slots, quantize)
    num_tokens, num_heads, dim = q.shape
    heads, angles = k.shape[1], torch.view_as_real(rotations)
    out = q.new_empty(q.shape)
    rotary_append_kernel[(num_tokens, num_heads + heads)](
        q, k, v, angles, slots, out, *planes, *scales, q.stride(0), k.stride(0), v.stride(0),
        angles.stride(0), planes[0].stride(0), num_heads, heads,
        HEAD_DIM=dim, ROTARY_DIM=2 * rotations.shape[1], BLOCK_P=block_d(dim) // 2, HALVES=halves,
        QUANT=quantize, num_warps=1,
    )  # fmt: skip
    return out


def _planes(
    pool: LayerKV, unused: Tensor, quantize: bool
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Where keys and values go, and their scales (`unused` where there are none)."""
    if not quantize:
        return (pool.k, pool.v), (unused, unused)
    k, v, k_scale, v_scale = pool.quantized_planes()
    return (k, v), (k_scale, v_scale)


def advance(plan: DevicePlan, new_slots: Tensor) -> None:
    """Move a decode plan on by one token in device memory; new_slots [tokens] in flat order."""
    views, block = plan.views, 128
    advance_tails[(triton.cdiv(max(1, plan.capacity.num_tokens), block),)](
        new_slots, views["slots"], views["units"], views["row_token"], views["row_pos"],
        views["tail_unit"], plan.header(ROWS_AT), BLOCK=block, num_warps=4,
    )  # fmt: skip


def _check_queries(q: Tensor, plan: DevicePlan, layer: AttentionLayer) -> None:
    dim, num_heads = layer.head_dim, layer.num_kv_heads * layer.group_size
    if q.shape[1:] != (num_heads, dim) or q.stride()[1:] != (dim, 1):
        raise ValueError(
            f"q is {tuple(q.shape)} with strides {q.stride()}; the kernels need "
            f"[tokens, {num_heads}, {dim}], contiguous in the last two"
        )
    if len(q) < plan.capacity.num_tokens:
        raise ValueError(
            f"q has {len(q)} tokens and the plan's buffer {plan.capacity.num_tokens}; pad q"
        )
