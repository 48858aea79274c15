"""References of the fused helpers in plain torch, of the same arguments as their launchers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from radixlang.kernels.attention import LayerKV


def turn_heads(heads: Tensor, turns: Tensor, *, halves: bool = False) -> Tensor:
    """Turn heads [tokens, heads, head_dim] in float32; returns their dtype.

    turns [tokens, rotary_dim / 2] complex64. A pair is (2p, 2p + 1), or with `halves`
    (p, p + rotary_dim / 2); dimensions from rotary_dim on stay as they are.
    """
    half = turns.shape[1]
    turned, rest = heads[..., : 2 * half].float(), heads[..., 2 * half :]
    x, y = (
        (turned[..., :half], turned[..., half:])
        if halves
        else (turned[..., ::2], turned[..., 1::2])
    )
    cosine, sine = turns.real[:, None], turns.imag[:, None]
    out_x, out_y = x * cosine - y * sine, x * sine + y * cosine
    joined = (
        torch.cat((out_x, out_y), -1) if halves else torch.stack((out_x, out_y), -1).flatten(-2)
    )
    return torch.cat((joined.to(heads.dtype), rest), -1)


def rotary_append_reference(
    pool: LayerKV,
    slots: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    turns: Tensor,
    *,
    halves: bool = False,
    quantize: bool = False,
) -> Tensor:
    """What `gpu.rotary_append` does: stores into `pool`, returns the turned queries."""
    keys = turn_heads(k, turns, halves=halves)
    real = slots >= 0
    at = slots[real]
    if not quantize:
        pool.k[at], pool.v[at] = keys[real].to(pool.k.dtype), v[real].to(pool.v.dtype)
        return turn_heads(q, turns, halves=halves)
    for values, plane, scales in (
        (keys, pool.k_int8, pool.k_scale),
        (v, pool.v_int8, pool.v_scale),
    ):
        assert plane is not None
        assert scales is not None
        plane[at], scales[at] = _to_int8(values[real].float())
    return turn_heads(q, turns, halves=halves)


def _to_int8(values: Tensor) -> tuple[Tensor, Tensor]:
    scale = values.abs().amax(-1) / 127
    steps = values / torch.where(scale == 0, 1.0, scale)[..., None]
    return torch.trunc(steps + torch.copysign(torch.tensor(0.5), steps)).to(torch.int8), scale
