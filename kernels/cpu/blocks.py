"""Attention by blocks of 64 positions, every sum of whole numbers.

Factors are rounded to 22 to 24 bits of their row's largest, so a product of matrices in float64 is
exact and its order does not matter; what is left is done number by number. Blocks are merged in the
order of their positions. So a row depends on its own path alone, as in the native library, whose
blocks these are; last bits differ from its.
"""

from __future__ import annotations

import torch
from torch import Tensor

from radixlang.kernels.cpu.elementwise import exp, power_of_two, tanh
from radixlang.kernels.cpu.pages import PageReading
from radixlang.kernels.cpu.paths import BLOCK, PathGroup
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions

OPTIONS = frozenset({"scale", "window", "soft_cap", "sinks"})  # what is computed here
_EXACT_BITS = 53  # of float64
_SUM_BITS = 40


def attend_blocks(
    q: Tensor,
    layer_kv: LayerKV,
    groups: list[PathGroup],
    options: AttentionOptions,
    reading: PageReading | None = None,
) -> Tensor:
    """Attention of every row over its path, whose keys and values are all in the pool.

    q [num_tokens, num_heads, head_dim]; returns its shape and dtype. `reading` limits what rows
    read; None: they read all.
    """
    options.check_known(OPTIONS, "plain torch")
    out = torch.empty_like(q)
    for group in groups:
        out[group.rows.flatten()] = _attend_group(q[group.rows], layer_kv, group, options, reading)
    return out


def _attend_group(
    q: Tensor,
    layer_kv: LayerKV,
    group: PathGroup,
    options: AttentionOptions,
    reading: PageReading | None,
) -> Tensor:
    """q [branches, queries, num_heads, head_dim]; returns [branches * queries, ...]."""
    num_branches, num_queries, num_heads, dim = q.shape
    heads = layer_kv.k.shape[1]
    rows = q.view(num_branches, num_queries, heads, -1, dim).permute(0, 2, 1, 3, 4).double()
    whole, step = _whole(rows, dim)
    state = _State(rows)
    first, last = _blocks_seen(group, options.window)
    chosen = _chosen(whole, step, layer_kv, group, last, options, reading)
    for block in range(first, last):
        # Rows are consecutive positions: those before the block see nothing of it.
        skipped = max(0, min(num_queries, block * BLOCK - int(group.positions[:, 0].max())))
        part = _block(
            whole[:, :, skipped:], step[:, :, skipped:], layer_kv, group, block, skipped, options,
            None if chosen is None else chosen[:, :, skipped:, block],
        )  # fmt: skip
        state.merge(skipped, *part)
    found = state.finish(options.sinks)  # [branches, heads, queries, group, dim]
    return found.permute(0, 2, 1, 3, 4).reshape(-1, num_heads, dim).to(q.dtype)


def _chosen(
    whole: Tensor,
    step: Tensor,
    layer_kv: LayerKV,
    group: PathGroup,
    last: int,
    options: AttentionOptions,
    reading: PageReading | None,
) -> Tensor | None:
    """Bool [branches, heads, queries, blocks]: what rows read of the first blocks of their paths;
    None: all that they see."""
    if reading is None:
        return None
    if options.window is not None:
        reading.count_all(group, options.window, layer_kv.k.shape[1])
        return None
    parts = [_block(whole, step, layer_kv, group, block, 0, options) for block in range(last)]
    most, total = (torch.cat([part[i] for part in parts], dim=-1) for i in (0, 1))
    return reading.choose(group, most, total, options.sinks)


def _blocks_seen(group: PathGroup, window: int | None) -> tuple[int, int]:
    first = 0 if window is None else int(group.positions.min()) - window + 1
    return max(0, first) // BLOCK, int(group.positions.max()) // BLOCK + 1


def _block(
    whole: Tensor,
    step: Tensor,
    layer_kv: LayerKV,
    group: PathGroup,
    block: int,
    skipped: int,
    options: AttentionOptions,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Max, sum of weights and weighted values of one block for the rows behind those skipped.

    `whole` [branches, heads, queries, group, dim] are their queries in steps of `step`; `chosen`
    [branches, heads, queries] tells which of them read the block, None: all.
    """
    at = slice(block * BLOCK, (block + 1) * BLOCK)
    slots = group.slots[:, at]
    quantized = None if group.quantized is None else group.quantized[:, at]
    k, v = _tokens(layer_kv, slots, quantized)  # [branches, heads, keys, dim]
    positions, keys = group.positions[:, skipped:, None], torch.arange(at.start, at.stop)
    seen = (slots >= 0)[:, None] & (keys <= positions)  # [branches, queries, keys]
    if options.window is not None:
        seen &= keys > positions - options.window
    seen = seen[:, None, :, None]
    if chosen is not None:
        seen = seen & chosen[..., None, None]
    scores = _products(whole, step, k.unsqueeze(2)) * options.scale
    if options.soft_cap is not None:
        scores = tanh(scores / options.soft_cap) * options.soft_cap
    scores = torch.where(seen, scores, -torch.inf)
    most = scores.amax(-1, keepdim=True)
    weights = exp(scores - most.clamp_min(-1e300))
    ones = float(1 << _SUM_BITS)
    total = torch.round(weights * ones).sum(-1, keepdim=True) / ones
    values, value_step = _whole(v, BLOCK)
    shares, share_step = _whole(weights * value_step.squeeze(-1)[:, :, None, None], BLOCK)
    return most, total, torch.matmul(shares, values.unsqueeze(2)) * share_step


def _tokens(layer_kv: LayerKV, slots: Tensor, quantized: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keys and values [branches, heads, keys, dim] in float64; zeros where there is no token."""
    held = slots if quantized is None else torch.where(quantized, 0, slots)
    k, v = (plane[held.clamp_min(0)].double() for plane in (layer_kv.k, layer_kv.v))
    if quantized is not None:
        k_int8, v_int8, k_scale, v_scale = layer_kv.quantized_planes()
        cold, told = torch.where(quantized, slots, 0), quantized[..., None, None]
        k = torch.where(told, _dequantized(k_int8[cold], k_scale[cold]), k)
        v = torch.where(told, _dequantized(v_int8[cold], v_scale[cold]), v)
    there = (slots >= 0)[..., None, None]
    return torch.where(there, k, 0.0).transpose(1, 2), torch.where(there, v, 0.0).transpose(1, 2)


def _dequantized(plane: Tensor, scale: Tensor) -> Tensor:
    return (plane.float() * scale[..., None]).double()


def _whole(x: Tensor, num_terms: int) -> tuple[Tensor, Tensor]:
    """x [..., n] as whole numbers in float64, and the step [..., 1] they are of; a sum of so many
    products of two such is exact."""
    bits = (_EXACT_BITS - (num_terms - 1).bit_length()) // 2
    exponent = torch.frexp(x.abs().amax(-1, keepdim=True)).exponent
    step = power_of_two(exponent.clamp_min(-900) - bits)
    return torch.round(x / step), step


def _products(whole: Tensor, step: Tensor, keys: Tensor) -> Tensor:
    """Scores [branches, heads, queries, group, keys], exact sums of rounded factors."""
    columns, column_step = _whole(keys, keys.shape[-1])
    return torch.matmul(whole, columns.transpose(-1, -2)) * step * column_step.transpose(-1, -2)


class _State:
    """The running result of rows [branches, heads, queries, group, ...]."""

    def __init__(self, rows: Tensor) -> None:
        self._most = torch.full((*rows.shape[:-1], 1), -torch.inf, dtype=torch.float64)
        self._total = torch.zeros_like(self._most)
        self._values = torch.zeros_like(rows)

    def merge(self, skipped: int, most: Tensor, total: Tensor, values: Tensor) -> None:
        """Take in a later block of the rows behind those skipped."""
        own = (slice(None), slice(None), slice(skipped, None))
        top = torch.maximum(self._most[own], most)
        keep, take = (exp(each - top.clamp_min(-1e300)) for each in (self._most[own], most))
        self._most[own] = top
        self._total[own] = self._total[own] * keep + total * take
        self._values[own] = self._values[own] * keep + values * take

    def finish(self, sinks: Tensor | None) -> Tensor:
        """Weighted means; a row that sees nothing is zero."""
        total = self._total
        if sinks is not None:
            heads, group = total.shape[1], total.shape[3]
            total = total + exp(sinks.double().view(heads, 1, group, 1) - self._most)
        return torch.where(total > 0, self._values / total, 0.0)
