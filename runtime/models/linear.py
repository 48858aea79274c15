"""Linear layers behind one call: `layer(x)` maps [num_tokens, in] to [num_tokens, out]."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F


class Linear(Protocol):
    """A weight packed once for its device and precision."""

    num_bytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, in_features] to [num_tokens, out_features]."""
        ...


class DenseLinear:
    """y = x Wᵀ + b in the weight's own dtype. weight: [out_features, in_features]."""

    __slots__ = ("bias", "num_bytes", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight.contiguous()
        self.bias = bias
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)
