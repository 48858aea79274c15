"""References of the fused helpers in plain torch, of the same arguments as their launchers."""

from __future__ import annotations

import torch
from torch import Tensor

from radixlang.kernels.layer_kv import LayerKV


def rotate_heads(heads: Tensor, rotations: Tensor, *, halves: bool = False) -> Tensor:
    """Rotate heads [tokens, heads, head_dim] in float32; returns their dtype.

    rotations [tokens, rotary_dim / 2] complex64. A pair is (2p, 2p + 1), or with `halves`
    (p, p + rotary_dim / 2); dimensions from rotary_dim on stay as they are.
    """
    half = rotations.shape[1]
    rotated, rest = heads[..., : 2 * half].float(), heads[..., 2 * half :]
    x, y = (
        (rotated[..., :half], rotated[..., half:])
        if halves
        else (rotated[..., ::2], rotated[..., 1::2])
    )
    cosine, sine = rotations.real[:, None], rotations.imag[:, None]
    out_x, out_y = x * cosine - y * sine, x * sine + y * cosine
    whole = torch.cat((out_x, out_y), -1) if halves else torch.stack((out_x, out_y), -1).flatten(-2)
    return torch.cat((whole.to(heads.dtype), rest), -1)


def rotary_append_reference(
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
    """What `gpu.rotary_append` does: stores into `pool`, returns the rotated queries."""
    keys = rotate_heads(k, rotations, halves=halves)
    real = slots >= 0
    at = slots[real]
    if not quantize:
        pool.k[at], pool.v[at] = keys[real].to(pool.k.dtype), v[real].to(pool.v.dtype)
        return rotate_heads(q, rotations, halves=halves)
    for values, plane, scales in (
        (keys, pool.k_int8, pool.k_scale),
        (v, pool.v_int8, pool.v_scale),
    ):
        assert plane is not None
        assert scales is not None
        plane[at], scales[at] = _to_int8(values[real].float())
    return rotate_heads(q, rotations, halves=halves)


def _to_int8(values: Tensor) -> tuple[Tensor, Tensor]:
    scale = values.abs().amax(-1) / 127
    steps = values / torch.where(scale == 0, 1.0, scale)[..., None]
    return torch.trunc(steps + torch.copysign(torch.tensor(0.5), steps)).to(torch.int8), scale


def sample_reference(
    logits: Tensor,
    bitmask: Tensor | None,
    temperature: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    counters: Tensor,
) -> tuple[Tensor, Tensor]:
    """What `sample_tokens.sample` does, a row at a time in float64 and by a sort."""
    ids, allowed = [], []
    for row, scores in enumerate(logits.double()):
        if bitmask is not None:
            bits = bitmask[row, torch.arange(len(scores)) // 32] >> (torch.arange(len(scores)) % 32)
            scores = scores.masked_fill((bits & 1) == 0, -torch.inf)
        best = scores.max()
        allowed.append(bool(best > -torch.inf))
        if not allowed[-1] or temperature[row] == 0:
            ids.append(int(scores.argmax()))
            continue
        weight = torch.exp((scores - best) / temperature[row].double())
        key = (int(seeds[row]), int(counters[row]))
        ids.append(_draw(weight, float(top_p[row]), float(min_p[row]), *key))
    return torch.tensor(ids), torch.tensor(allowed)


def _draw(weight: Tensor, top_p: float, min_p: float, seed: int, counter: int) -> int:
    """Rounds of drawing and rejecting what lies outside the nucleus."""
    order = weight.sort(descending=True).values
    likelier = torch.searchsorted(-order, -weight)  # how many tokens are likelier than each
    mass = torch.cat((order.new_zeros(1), order.cumsum(0)))[likelier]
    kept = torch.where(weight >= min_p, weight, 0.0)
    while True:
        running = kept.cumsum(0)
        number = uniform_reference(seed, counter) * running[-1]
        token = int(torch.searchsorted(running, number, right=True).clamp_max(len(weight) - 1))
        if top_p >= 1 or mass[token] < top_p * weight.sum():
            return token
        kept = torch.where(weight > weight[token], kept, 0.0)
        counter += 1 << 33


def uniform_reference(seed: int, counter: int) -> float:
    """SplitMix64's number in [0, 1) of a key, in Python's own integers."""
    state = _mix(seed % 2**64) + (counter % 2**64 + 1) * 0x9E3779B97F4A7C15
    return float(_mix(state % 2**64) >> 11) * 2.0**-53


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)
