"""Rotary position embedding (RoPE) as one complex product for each layer.

Rows of the query and key projections are reordered at load (`interleave_rows`) so that the two
dimensions of a rotated pair are neighbours; a head then is a vector of complex numbers and
rotating it is one multiplication. Dot products of queries with keys do not change.

Su et al. 2021 (RoFormer); Peng et al. 2023 (YaRN); Ding et al. 2024 (LongRoPE).
"""

from __future__ import annotations

import math

import torch

from radixlang.runtime.models.config import RopeConfig


class Rotary:
    """Rotates query and key heads by their positions, for one `RopeConfig`."""

    __slots__ = ("_inverse_freq", "_num_fixed", "_scale")

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        inverse_freq, scale = inverse_frequencies(rope)
        self._inverse_freq = inverse_freq.to(device)  # [rotary_dim / 2]
        self._num_fixed = (head_dim - rope.rotary_dim) // 2
        self._scale = scale

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """Unit complex numbers [num_tokens, 1, head_dim / 2] for positions [num_tokens]."""
        angles = positions.to(torch.float32)[:, None] * self._inverse_freq
        rotations = torch.polar(torch.full_like(angles, self._scale), angles)
        if self._num_fixed:
            fixed = rotations.new_ones((rotations.shape[0], self._num_fixed))
            rotations = torch.cat((rotations, fixed), dim=1)
        return rotations[:, None, :]


def rotate(heads: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Rotate heads [num_tokens, num_heads, head_dim] (interleaved pairs) by `Rotary.at`.

    In real numbers: torch's complex product has other last bits at the ends of a tensor.
    """
    wide = heads if heads.dtype == torch.float64 else heads.float()
    x, y = wide.view(*heads.shape[:-1], -1, 2).unbind(-1)
    real, imaginary = rotations.real, rotations.imag
    rotated = torch.stack((x * real - y * imaginary, x * imaginary + y * real), dim=-1)
    return rotated.flatten(-2).to(heads.dtype)


def interleave_rows(weight: torch.Tensor, num_heads: int, rotary_dim: int) -> torch.Tensor:
    """Reorder the rows of each head from halves (x0..xn y0..yn) to pairs (x0 y0 x1 y1 …).

    weight: [num_heads * head_dim, ...], also a bias or a norm's gain with num_heads = 1.
    """
    head_dim = weight.shape[0] // num_heads
    half = rotary_dim // 2
    order = torch.arange(head_dim)
    order[:rotary_dim] = torch.stack((order[:half], order[half:rotary_dim]), dim=1).flatten()
    heads = weight.reshape(num_heads, head_dim, *weight.shape[1:])
    return heads[:, order].reshape(weight.shape)


def inverse_frequencies(rope: RopeConfig) -> tuple[torch.Tensor, float]:
    """Radians a token [rotary_dim / 2], fp32, and the factor on cosine and sine."""
    exponent = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / rope.rotary_dim
    # In units of 2 pi tokens; powers by plain floats, as torch's last bits depend on the CPU.
    wavelength = torch.tensor([rope.theta**each for each in exponent.tolist()])
    inverse = 1.0 / wavelength
    if rope.factors and rope.kind != "longrope":
        inverse = inverse / torch.tensor(rope.factors, dtype=torch.float32)
    match rope.kind:
        case "default":
            return inverse, rope.attention_factor or 1.0
        case "linear":
            return inverse / rope.factor, 1.0
        case "llama3":
            return _llama3(rope, inverse), 1.0
        case "yarn":
            return _yarn(rope, wavelength), _yarn_attention_factor(rope)
        case "longrope":
            stretch = torch.tensor(rope.factors, dtype=torch.float32)
            return 1.0 / (stretch * wavelength), _longrope_attention_factor(rope)


def _llama3(rope: RopeConfig, inverse: torch.Tensor) -> torch.Tensor:
    """Low frequencies are divided by `factor`, high ones kept, those between interpolated."""
    rotations = rope.original_context_length / (2 * math.pi / inverse)
    smooth = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = smooth.clamp(0.0, 1.0)
    return (1 - smooth) * inverse / rope.factor + smooth * inverse


def _yarn(rope: RopeConfig, wavelength: torch.Tensor) -> torch.Tensor:
    low, high = (_yarn_dim(rope, beta) for beta in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    span = high - low or 0.001
    ramp = ((torch.arange(rope.rotary_dim // 2).float() - low) / span).clamp(0, 1)
    return (1.0 / (rope.factor * wavelength)) * ramp + (1.0 / wavelength) * (1 - ramp)


def _yarn_dim(rope: RopeConfig, num_rotations: float) -> float:
    """The dimension that rotates so many times over the trained context."""
    span = rope.original_context_length / (num_rotations * 2 * math.pi)
    return rope.rotary_dim * math.log(span) / (2 * math.log(rope.theta))


def _yarn_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1.0:
        return 1.0
    return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_context_length))
