"""Attention on the CPU: one flash call a shared node, one padded call for short tails, a merge.

torch's flash kernel for the CPU gives the natural log-sum-exp with its output, which is all a
merge needs. Its traps, all avoided here: an empty list of keys ends the process; a row with
every key masked reports a log-sum-exp of 0; a last stride other than 1 is silently wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from radixlang.kernels.cpu.calls import (
    STRETCH,
    Causal,
    FlashCall,
    Full,
    Group,
    Keys,
    Lone,
    Masked,
    Planned,
    Unit,
)
from radixlang.kernels.cpu.schedule import CpuSchedule
from radixlang.kernels.cpu.split_kv import Pieces
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionPlan

_flash = torch._scaled_dot_product_flash_attention_for_cpu  # 2 µs less than through torch.ops
_EXPLICIT_SCORES = 1 << 22  # scores held at once by the soft-capped path, per head


def attend_cpu(
    q: Tensor,
    layer_kv: LayerKV,
    plan: AttentionPlan,
    schedule: CpuSchedule,
    options: AttentionOptions,
) -> Tensor:
    """Attend over keys and values already in the pool.

    q [num_tokens, num_heads, head_dim] in flat order. Partials are merged in float32 at least. A
    half-precision q has them computed in float32 too; a float32 q over a half-precision pool, in
    the pool's dtype. Returns q's shape and dtype.
    """
    alone = schedule.alone
    if alone is not None and _is_plain(options) and _fits(alone.pieces, q.dtype):
        return _alone(q, layer_kv, alone, options.scale)
    merged = bool(schedule.rest) or options.sinks is not None
    dtype = torch.promote_types(q.dtype, torch.float32) if merged else q.dtype
    if q.dtype.itemsize > layer_kv.k.dtype.itemsize:
        dtype = layer_kv.k.dtype
    rows = _ranked(packed(q, plan.num_kv_heads, dtype), plan)
    step = _Step(rows, layer_kv, plan.num_kv_heads, plan.head_dim, options, q.dtype)
    return _merged(step, schedule, plan)


def _is_plain(options: AttentionOptions) -> bool:
    """Whether torch's flash call does all that is asked for."""
    return options.soft_cap is None and options.sinks is None


def _merged(step: _Step, schedule: CpuSchedule, plan: AttentionPlan) -> Tensor:
    """All units, merged one by one, [num_tokens, num_heads, head_dim] in flat order."""
    sinks = step.options.sinks
    out, lse = _first(step, schedule.planned_first)
    needs_lse = len(schedule.planned_rest) - (sinks is None)  # merges with one more behind them
    for number, planned in enumerate(schedule.planned_rest):
        _merge(step, planned, out, lse, keeps_lse=number < needs_lse)
    if sinks is not None:
        sink = sinks.to(lse.dtype).view(plan.num_kv_heads, plan.group_size).t()
        out = out * torch.sigmoid(lse - sink).unsqueeze(-1)
    if plan.row_inverse is not None:
        out = out.index_select(0, plan.row_inverse)
    return out.transpose(1, 2).reshape(plan.q_shape).to(step.out_dtype)


@dataclass(frozen=True, slots=True)
class Partials:
    """The partials of all rows over two parts of their keys, not merged yet.

    A single partial of all keys is given twice: merging it with itself changes nothing.
    Rows are ranked: `plan.row_inverse`, where there is one, puts merged rows in flat order.
    Outputs [num_tokens, group, kv_heads, d] in the pool's dtype, and natural log-sum-exps
    [num_tokens, group, kv_heads] in float32; all contiguous.
    """

    first: Tensor
    first_lse: Tensor
    second: Tensor
    second_lse: Tensor


def attend_packed_cpu(
    q: Tensor,
    layer_kv: LayerKV,
    plan: AttentionPlan,
    schedule: CpuSchedule,
    options: AttentionOptions,
) -> Tensor | Partials:
    """As `attend_cpu`, of queries that are `packed` in the pool's dtype already, to float32.

    For options without a soft cap and sinks.

    Where all there is to do is one or two partials of all rows, they are left to the caller: most
    steps are so, a prompt's, and those of a fork, over what is shared and over the tails.
    """
    if schedule.alone is not None:
        out = _alone(q.transpose(1, 2), layer_kv, schedule.alone, options.scale)
        return out.reshape(plan.q_shape).float()
    pair = schedule.two_partials
    dtype = torch.float32 if pair is None else q.dtype
    rows = _ranked(q, plan)
    step = _Step(rows, layer_kv, plan.num_kv_heads, plan.head_dim, options, dtype)
    return _merged(step, schedule, plan) if pair is None else _two_partials(step, *pair)


def _two_partials(step: _Step, own: Unit, shared: FlashCall | None) -> Partials:
    first, first_lse = (part.contiguous() for part in _run(step, own))
    if shared is None:
        return Partials(first, first_lse, first, first_lse)
    second, second_lse = (part.transpose(1, 2) for part in step.call(shared))
    return Partials(
        first, first_lse, second.reshape(first.shape), second_lse.reshape(first_lse.shape)
    )


def packed(q: Tensor, num_kv_heads: int, dtype: torch.dtype) -> Tensor:
    """Queries [n, num_heads, d] as contiguous [n, group, kv_heads, d]: the rows of one key head
    are then (row, group) at one stride."""
    rows = q.reshape(q.shape[0], num_kv_heads, -1, q.shape[-1]).transpose(1, 2)
    return rows.to(dtype, memory_format=torch.contiguous_format).contiguous()


def _ranked(rows: Tensor, plan: AttentionPlan) -> Tensor:
    return rows if plan.row_order is None else rows.index_select(0, plan.row_order)


def _alone(q: Tensor, pool: LayerKV, lone: Lone, scale: float) -> Tensor:
    """One call of torch's own and nothing around it, but the merge of its pieces."""
    k, v = _in_place(pool, lone)
    members, heads, _, dim = lone.size
    if lone.pieces is not None:
        rows = _same(q, k).view(1, heads, -1, dim)
        out, _ = _in_pieces(rows, k, v, lone.pieces, scale)
    else:
        out, _ = _flash(_same(q, k).view(members, heads, -1, dim), k, v, scale=scale)
    return _same(out.reshape(q.shape), q)


def _in_pieces(
    q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, scale: float
) -> tuple[Tensor, Tensor]:
    """q [1, kv_heads, rows, d] over k and v [pieces, kv_heads, length, d]; log-sum-exps of all."""
    rows = q.expand(pieces.count, -1, -1, -1)
    out, lse = _flash(rows, k, v, attn_mask=pieces.mask, scale=scale)
    return (out * torch.softmax(lse, dim=0).unsqueeze(-1)).sum(0, keepdim=True), lse


def _fits(pieces: Pieces | None, dtype: torch.dtype) -> bool:
    """Partials are never rounded to half precision, so it is not computed in pieces."""
    return pieces is None or dtype.itemsize >= 4


def _at(plane: Tensor, size: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    return plane.as_strided(size, strides, plane.storage_offset() + offset)


def _in_place(pool: LayerKV, lone: Lone) -> tuple[Tensor, Tensor]:
    """Keys and values of one call, [members, kv_heads, length, d]."""
    return (
        _at(pool.k, lone.size, lone.strides, lone.offset),
        _at(pool.v, lone.size, lone.strides, lone.offset),
    )


def _widest(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype.itemsize >= dtype.itemsize else tensor.to(dtype)


def _same(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor if tensor.dtype == like.dtype else tensor.to(like.dtype)


@dataclass(slots=True)
class _Step:
    """One layer's queries and pool. Rows are ranked; `packed` decides the arithmetic's dtype."""

    packed: Tensor  # [num_tokens, group, kv_heads, d]
    pool: LayerKV
    heads: int
    dim: int
    options: AttentionOptions
    out_dtype: torch.dtype  # of the rows asked for, at most that of partials

    @property
    def is_exact(self) -> bool:
        """Whether partials may be merged: none is to be rounded to less than was asked for."""
        return self.out_dtype.itemsize >= 4

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        """q [B, kv_heads, M, d], k and v [B, kv_heads, L, d]: output and natural log-sum-exp."""
        scale, soft_cap = self.options.scale, self.options.soft_cap
        if soft_cap is not None:
            out, lse = _explicit(q, k, v, mask, causal, scale, soft_cap)
        else:
            out, lse = _flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        return _widest(out, self.out_dtype), lse

    def call(self, call: FlashCall) -> tuple[Tensor, Tensor]:
        """The partial of rows and keys that lie in place, [members, kv_heads, rows, d]."""
        k, v = _in_place(self.pool, call.keys)
        q = self.packed.as_strided(*call.rows)
        return self.attend(q, _same(k, q), _same(v, q), call.mask)

    def full(self, q: Tensor, keys: Keys) -> tuple[Tensor, Tensor]:
        """q [1, kv_heads, rows, d], all of which see all keys."""
        pieces = keys.pieces
        capped = self.options.soft_cap is not None
        if pieces is None or capped or not _fits(pieces, self.out_dtype):
            return self.attend(q, *self.load(keys))
        size = (pieces.count, self.heads, pieces.length, self.dim)
        width = self.heads * self.dim
        strides = (pieces.step * width, self.dim, width, 1)
        k, v = (_at(plane, size, strides, 0) for plane in self.tokens(keys))
        out, lse = _in_pieces(q, k, v, pieces, self.options.scale)
        return out, torch.logsumexp(lse, dim=0, keepdim=True)

    def load(self, keys: Keys) -> tuple[Tensor, Tensor]:
        """Keys and values as [1, kv_heads, length, d], in place where they lie in one run."""
        shape = (1, keys.length, self.heads, self.dim)
        k, v = self.tokens(keys)
        return k.view(shape).transpose(1, 2), v.view(shape).transpose(1, 2)

    def tokens(self, keys: Keys) -> tuple[Tensor, Tensor]:
        """Keys and values, contiguous by token, in place where they lie in one run."""
        if keys.quantized:
            return self._dequantize(keys)
        if keys.index is not None:
            return self.gather(keys.index)
        k = self.pool.k.narrow(0, keys.start, keys.length)
        v = self.pool.v.narrow(0, keys.start, keys.length)
        return _same(k, self.packed), _same(v, self.packed)

    def gather(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the tokens at `index`, [len(index), kv_heads * d]; whole rows copy fastest."""
        k = self.pool.k.view(-1, self.heads * self.dim).index_select(0, index)
        v = self.pool.v.view(-1, self.heads * self.dim).index_select(0, index)
        return _same(k, self.packed), _same(v, self.packed)

    def _dequantize(self, keys: Keys) -> tuple[Tensor, Tensor]:
        k, v, k_scale, v_scale = self.pool.quantized_planes()
        run = slice(keys.start, keys.start + keys.length)
        index: Tensor | slice = run if keys.index is None else keys.index
        return (
            _same(k[index] * k_scale[index].unsqueeze(-1), self.packed),
            _same(v[index] * v_scale[index].unsqueeze(-1), self.packed),
        )


def _first(step: _Step, planned: list[Planned]) -> tuple[Tensor, Tensor]:
    """Output [num_tokens, group, kv_heads, d] and log-sum-exp of the units that cover all rows."""
    whole, _ = planned[0]
    if len(planned) == 1:
        out, lse = _run(step, whole)
        return out.contiguous(), lse.contiguous()
    dtype = torch.promote_types(step.packed.dtype, step.out_dtype)
    out = torch.empty(step.packed.shape, dtype=dtype)
    lse = torch.empty(out.shape[:-1], dtype=torch.promote_types(dtype, torch.float32))
    for unit, call in planned:
        partial, partial_lse = _run(step, unit) if call is None else step.call(call)
        if call is not None:
            out.as_strided(*call.rows).copy_(partial)
            lse.as_strided(*call.lses).copy_(partial_lse)
        elif isinstance(unit, Group) and unit.target_rows is not None:
            out.index_copy_(0, unit.target_rows, partial)
            lse.index_copy_(0, unit.target_rows, partial_lse)
        else:
            out[unit.begin : unit.end] = partial
            lse[unit.begin : unit.end] = partial_lse
    return out, lse


def _merge(step: _Step, planned: Planned, out: Tensor, lse: Tensor, *, keeps_lse: bool) -> None:
    """Take one more partial into the running result; the running log-sum-exp is always finite."""
    unit, call = planned
    if call is not None:
        partial, partial_lse = step.call(call)
        out, lse = out.as_strided(*call.rows), lse.as_strided(*call.lses)
    else:
        partial, partial_lse = _run(step, unit)
        if unit.end - unit.begin != len(out):
            out, lse = out[unit.begin : unit.end], lse[unit.begin : unit.end]
    out.lerp_(partial, torch.sigmoid(partial_lse - lse).unsqueeze(-1))
    if keeps_lse:
        torch.logaddexp(lse, partial_lse, out=lse)


def _run(step: _Step, unit: Unit) -> tuple[Tensor, Tensor]:
    """Partial output [rows, group, kv_heads, d] and log-sum-exp [rows, group, kv_heads]."""
    match unit:
        case Full(begin, end, keys):
            rows = step.packed[begin:end]
            if end - begin == 1:
                q = rows.transpose(1, 2)
            else:
                q = rows.view(1, -1, step.heads, step.dim).transpose(1, 2)
            out, lse = step.full(q, keys)
            return out.transpose(1, 2).view(rows.shape), lse.transpose(1, 2).view(rows.shape[:-1])
        case Causal(begin, end, keys):
            return _spread(step, begin, end, keys, None, causal=True)
        case Masked(begin, end, keys, mask, blind):
            out, lse = _spread(step, begin, end, keys, mask, causal=False)
            if blind is not None:
                out.masked_fill_(blind.view(-1, 1, 1, 1), 0.0)
                lse.masked_fill_(blind.view(-1, 1, 1), -torch.inf)
            return out, lse
        case Group():
            return _run_group(step, unit)


def _spread(
    step: _Step, begin: int, end: int, keys: Keys, mask: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Rows whose limits differ: the group is the batch, and keys repeat along it by stride 0."""
    k, v = step.load(keys)
    q = step.packed[begin:end].permute(1, 2, 0, 3)  # [group, kv_heads, rows, d]
    k, v = k.expand(len(q), -1, -1, -1), v.expand(len(q), -1, -1, -1)
    if mask is not None:
        mask = mask.to(q.dtype)[None, None]
    out, lse = step.attend(q, k, v, mask, causal)
    return out.permute(2, 0, 1, 3), lse.permute(2, 0, 1)


def _run_group(step: _Step, unit: Group) -> tuple[Tensor, Tensor]:
    if unit.query_rows is None:
        rows = step.packed[unit.begin : unit.end]
    else:
        rows = step.packed.index_select(0, unit.query_rows)
    mask = unit.mask(rows.dtype, rows.shape[1])
    q = rows.reshape(unit.num_members, -1, step.heads, step.dim).transpose(1, 2)
    out, lse = _attend_group(step, unit, q, mask)
    out, lse = out.transpose(1, 2).reshape(rows.shape), lse.transpose(1, 2).reshape(rows.shape[:-1])
    if unit.real is None:
        return out, lse
    return out.index_select(0, unit.real), lse.index_select(0, unit.real)


def _attend_group(
    step: _Step, unit: Group, q: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """q [members, kv_heads, rows, d] over the members' own keys, gathered or in place.

    In place, long tails go in stretches that stay in the cache while each head passes over them.
    """
    if unit.grid is None:
        k, v = step.gather(unit.index)
        shape = (unit.num_members, unit.length, step.heads, step.dim)
        return step.attend(q, k.view(shape).transpose(1, 2), v.view(shape).transpose(1, 2), mask)
    exact = mask is None and step.is_exact
    stretch = STRETCH if exact else unit.length  # partials are never rounded to half precision
    out, lse = step.attend(q, *_grid_keys(step, unit, 0, stretch), mask)
    for begin in range(stretch, unit.length, stretch):
        more, more_lse = step.attend(q, *_grid_keys(step, unit, begin, stretch))
        out.lerp_(more, torch.sigmoid(more_lse - lse).unsqueeze(-1))
        lse = torch.logaddexp(lse, more_lse)
    return out, lse


def _grid_keys(step: _Step, unit: Group, begin: int, stretch: int) -> tuple[Tensor, Tensor]:
    """A stretch of evenly lying tails as [members, kv_heads, length, d], without a copy."""
    assert unit.grid is not None
    first, across, along = unit.grid
    width, count = step.heads * step.dim, min(stretch, unit.length - begin)
    size = (unit.num_members, step.heads, count, step.dim)
    strides = (across * width, step.dim, along * width, 1)
    offset = (first + begin * along) * width
    return (
        _same(_at(step.pool.k, size, strides, offset), step.packed),
        _same(_at(step.pool.v, size, strides, offset), step.packed),
    )


def _explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    soft_cap: float,
) -> tuple[Tensor, Tensor]:
    """Soft-capped attention, which the flash call does not know; blocks of rows bound its scores.

    The cap bounds every visible score, so only masked ones are infinite.
    """
    keys, values = k.float(), v.float()
    size = max(1, _EXPLICIT_SCORES // k.shape[2])
    outs, lses = [], []
    for begin in range(0, q.shape[2], size):
        rows = q[:, :, begin : begin + size].float()
        scores = torch.tanh(rows @ keys.transpose(-1, -2) * (scale / soft_cap)) * soft_cap
        if mask is not None:
            scores += mask[:, :, begin : begin + size]
        if causal:
            row = torch.arange(begin, begin + rows.shape[2])
            later = torch.arange(k.shape[2])[None, :] > row[:, None]
            scores.masked_fill_(later, -torch.inf)
        lse = torch.logsumexp(scores, dim=-1)
        weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1))
        outs.append(weights @ values)
        lses.append(lse)
    return torch.cat(outs, dim=2).to(q.dtype), torch.cat(lses, dim=2)
