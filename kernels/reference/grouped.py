"""Products with weights that have a scale for every 32, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32
LARGEST = 127.0  # the largest quantized value
TINY = 1e-30  # a group of zeros has this peak


def rounded_by_groups(x: Tensor) -> Tensor:
    """x [num_tokens, width] in float64, rounded to 8 bits with a scale for every 32 values."""
    groups = x.float().view(x.shape[0], -1, GROUP)
    peak = groups.abs().amax(-1, keepdim=True).clamp_min(TINY)
    quantized = torch.round(groups * (LARGEST / peak))
    return (quantized.double() * (peak / LARGEST)).view(x.shape)


def grouped_product(x: Tensor, weight: Tensor) -> Tensor:
    """Rounded x [num_tokens, width] times the weight [out, width] transposed, in float64."""
    return rounded_by_groups(x) @ weight.double().t()
