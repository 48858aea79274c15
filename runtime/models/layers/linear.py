"""Linear layers behind one call: `layer(x)` maps [num_tokens, in] to [num_tokens, out]."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from radixlang.kernels.native.decoder import DenseWeight
from radixlang.kernels.native.grouped import GroupedWeight


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

    @property
    def rows(self) -> torch.Tensor:
        """The weight as [out_features, in_features]."""
        return self.weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class TransposedLinear:
    """The same with the weight stored [in_features, out_features].

    On a CPU in fp32 it took 0.5 to 0.8 of F.linear's time for 4 to 16 tokens, and as much for 1 or
    for 64 and more (docs/decisions/0003-linear-layers.md).
    """

    __slots__ = ("bias", "num_bytes", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight.t().contiguous()
        self.bias = bias
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    @property
    def rows(self) -> torch.Tensor:
        """The weight as [out_features, in_features], a view."""
        return self.weight.t()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)


class NativeLinear:
    """The same by the native library: a row's result has the same bits in any company.

    x and what comes back are float32, whatever the weight is stored in.
    """

    __slots__ = ("bias", "num_bytes", "weight")

    def __init__(self, weight: DenseWeight, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.num_bytes = weight.num_bytes + (0 if bias is None else bias.nbytes)

    @property
    def rows(self) -> torch.Tensor:
        """The weight as [out_features, in_features], a copy."""
        return self.weight.unpacked()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.weight(x)
        return out if self.bias is None else out.add_(self.bias)


class GroupedLinear:
    """The same with a weight in a file's own blocks; x is rounded to 8 bits by groups."""

    __slots__ = ("bias", "num_bytes", "weight")

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.num_bytes = weight.num_bytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.weight(x)
        return out if self.bias is None else out.add_(self.bias)


class RowByRow:
    """Another linear layer, for a row at a time: torch may round a row otherwise in company."""

    __slots__ = ("_linear", "num_bytes")

    def __init__(self, linear: Linear) -> None:
        self._linear = linear
        self.num_bytes = linear.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self._linear(x[row : row + 1].clone()) for row in range(len(x))])


class RmsNorm:
    """x / rms(x) * gain [width]; without a gain if it is None. Zhang and Sennrich 2019."""

    __slots__ = ("_shape", "eps", "gain")

    def __init__(self, width: int, eps: float, gain: torch.Tensor | None = None) -> None:
        self.gain = gain
        self.eps = eps
        self._shape = (width,)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self._shape, self.gain, self.eps)
