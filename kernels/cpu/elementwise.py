"""Functions of single numbers whose bits do not depend on where in a tensor a number lies.

torch computes the middle of a tensor with vector instructions and its ends without, and the two
differ in last bits; where the ends are depends on the batch and on the number of threads. Sums,
products and quotients are rounded alike in both, and these functions are made of nothing else.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LARGEST_POWER = 1000.0
_FACTORIALS = [1.0 / math.factorial(n) for n in range(13, -1, -1)]
_EXPONENT_BIAS, _MANTISSA_BITS = 1023, 52  # of float64


def power_of_two(exponent: Tensor) -> Tensor:
    """2 ** exponent in float64, exactly; exponents are whole and within float64's range."""
    return ((exponent.to(torch.int64) + _EXPONENT_BIAS) << _MANTISSA_BITS).view(torch.float64)


def exp(x: Tensor) -> Tensor:
    """e ** x in float64, to about 1e-16, for x up to 693; 0 below -693 and for -inf."""
    powers = x.double() * math.log2(math.e)
    powers = powers.clamp(-_LARGEST_POWER, _LARGEST_POWER)
    whole = torch.round(powers)
    rest = (powers - whole) * math.log(2.0)  # at most 0.35 in size
    sum_ = torch.full_like(rest, _FACTORIALS[0])
    for factor in _FACTORIALS[1:]:
        sum_ = sum_ * rest + factor
    return torch.where(powers <= -_LARGEST_POWER, 0.0, sum_ * power_of_two(whole))


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent, in x's dtype."""
    return (1.0 - 2.0 / (exp(2.0 * x.double()) + 1.0)).to(x.dtype)


def silu(x: Tensor) -> Tensor:
    """x times its logistic function, in x's dtype."""
    return (x.double() / (1.0 + exp(-x.double()))).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh form, in x's dtype."""
    wide = x.double()
    inner = math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (0.5 * wide * (1.0 + tanh(inner))).to(x.dtype)


def gelu(x: Tensor) -> Tensor:
    """GELU by the error function, whose last bits in float64 are lost in rounding to x's dtype."""
    wide = x.double()
    return (0.5 * wide * (1.0 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)
