"""The activations of gated MLPs: one entry has its names, its arithmetic and its number in C++."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from radixlang.kernels.cpu import elementwise


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of single numbers.

    Args:
        names: in configurations of checkpoints; the first is ours.
        exact: on the CPU, with bits that do not depend on where in a tensor a number lies.
        fused: torch's own, elsewhere.
        native: its number in `kernels/native/cpp/ops.h`.
    """

    names: tuple[str, ...]
    exact: Callable[[Tensor], Tensor]
    fused: Callable[[Tensor], Tensor]
    native: int


_ALL = (
    Activation(("silu", "swish"), elementwise.silu, F.silu, native=0),
    Activation(
        ("gelu_tanh", "gelu_new", "gelu_pytorch_tanh"),
        elementwise.gelu_tanh,
        partial(F.gelu, approximate="tanh"),
        native=1,
    ),
    Activation(("gelu",), elementwise.gelu, F.gelu, native=2),
)
ACTIVATIONS = {name: activation for activation in _ALL for name in activation.names}
