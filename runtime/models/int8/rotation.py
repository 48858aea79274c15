"""Rotations that make a model fit for 8 bits without changing what it computes.

A few channels of the residual stream are far larger than the rest, and a scale a token then
leaves little for the others. Rotating the stream by one orthogonal matrix spreads them out;
norms without gains commute with it, so it folds into the weights beforehand and costs nothing
at run time. The input of the down projection is rotated in the loop, in small blocks.

Every product is a sequence of additions and multiplications in one fixed order, so a row has the
same bits in any batch, on any CPU, and in the native library, which is faster.

Ashkboos et al. 2024 (QuaRot); Liu et al. 2024 (SpinQuant).
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from radixlang.kernels.native.decoder import Rotation, Transforms
from radixlang.kernels.native.library import Library

MAX_HADAMARD = 64


def block_size(width: int, limit: int = MAX_HADAMARD) -> int:
    """Largest power of two that divides the width, up to the limit."""
    return min(width & -width, limit)


def hadamard(x: Tensor, block: int) -> Tensor:
    """x [..., width] times the orthonormal block-diagonal Hadamard matrix (Sylvester's order).

    A fast Walsh-Hadamard transform: log2(block) passes of sums and differences, then one scale.
    """
    rotated, half = x.contiguous(), 1
    while half < block:
        pairs = rotated.view(-1, 2, half)
        low, high = pairs[:, 0], pairs[:, 1]
        rotated = torch.stack((low + high, low - high), dim=1)
        half *= 2
    scale = torch.tensor(1.0) / torch.tensor(float(block)).sqrt()
    return (rotated * scale.to(x.dtype)).view(x.shape)


class BlockHadamard:
    """Multiplies the last dimension by a block-diagonal Hadamard matrix: its own inverse."""

    __slots__ = ("_native", "size")

    def __init__(
        self, width: int, limit: int = MAX_HADAMARD, library: Library | None = None
    ) -> None:
        self.size = block_size(width, limit)
        self._native = None if library is None else Transforms(library)

    def __call__(self, x: Tensor) -> Tensor:
        if self._native is None:
            return hadamard(x, self.size)
        return self._native.hadamard(x, self.size, threads=1)


class ResidualRotation:
    """A fixed orthogonal matrix Q [width, width], quick to multiply by.

    Q = diag(signs) (O ⊗ H): a Hadamard matrix as large as the width's power of two, and a random
    orthogonal one for the odd rest; from a fixed seed, so that results repeat.
    """

    def __init__(self, width: int, seed: int = 0, library: Library | None = None) -> None:
        source = random.Random(seed)
        self._block = block_size(width, width)
        self._rest = orthogonal(width // self._block, source)
        self._signs = torch.tensor([source.choice((-1.0, 1.0)) for _ in range(width)])
        self._native = None if library is None else Transforms(library)

    @property
    def parts(self) -> Rotation:
        """The rotation as the native library takes it."""
        return Rotation(self._signs, self._rest)

    def columns(self, weight: Tensor) -> Tensor:
        """weight Q: a layer that reads the rotated stream, or an embedding that writes it."""
        if self._native is not None:
            return self._native.rotated(self.parts, weight, threads=1)
        rotated = hadamard(weight * self._signs, self._block)
        return _mixed(self._rest, rotated.view(-1, len(self._rest), self._block)).view(weight.shape)

    def rows(self, weight: Tensor) -> Tensor:
        """Qᵀ weight: a layer that adds to the rotated stream."""
        return self.columns(weight.t().contiguous()).t().contiguous()


def orthogonal(size: int, source: random.Random) -> Tensor:
    """A random orthogonal matrix [size, size], by Gram and Schmidt's method, in plain floats.

    LAPACK's last bits are another's on another CPU.
    """
    rows: list[list[float]] = []
    while len(rows) < size:
        row = [source.gauss(0.0, 1.0) for _ in range(size)]
        for _ in range(2):  # once more for what rounding left
            for other in rows:
                shared = sum(a * b for a, b in zip(row, other, strict=True))
                row = [a - shared * b for a, b in zip(row, other, strict=True)]
        length = sum(a * a for a in row) ** 0.5
        if length > 1e-6:
            rows.append([a / length for a in row])
    return torch.tensor(rows, dtype=torch.float32)


def _mixed(rest: Tensor, split: Tensor) -> Tensor:
    """rest [n, n] times split [rows, n, block], summed in the order of rest's columns."""
    total = rest[:, 0, None] * split[:, :1]
    for column in range(1, len(rest)):
        total = total + rest[:, column, None] * split[:, column : column + 1]
    return total
