"""Rotations that make a model fit for 8 bits without changing what it computes.

A few channels of the residual stream are far larger than the rest, and a scale a token then
leaves little for the others. Rotating the stream by one orthogonal matrix spreads them out;
norms without gains commute with it, so it folds into the weights beforehand and costs nothing
at run time. The input of the down projection is rotated in the loop, in small blocks.

Ashkboos et al. 2024 (QuaRot); Liu et al. 2024 (SpinQuant).
"""

from __future__ import annotations

import torch

from radixlang.kernels.native.decoder import Rotation

MAX_HADAMARD = 64


def hadamard(size: int) -> torch.Tensor:
    """Orthonormal symmetric Hadamard matrix [size, size]; size is a power of two (Sylvester)."""
    matrix = torch.ones((1, 1))
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    scaled: torch.Tensor = matrix / size**0.5
    return scaled


def block_size(width: int, limit: int = MAX_HADAMARD) -> int:
    """Largest power of two that divides the width, up to the limit."""
    return min(width & -width, limit)


class BlockHadamard:
    """Multiplies the last dimension by a block-diagonal Hadamard matrix: its own inverse."""

    __slots__ = ("_matrix", "size")

    def __init__(self, width: int, limit: int = MAX_HADAMARD) -> None:
        self.size = block_size(width, limit)
        self._matrix = hadamard(self.size)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x.reshape(-1, self.size), self._matrix).view(x.shape)


class ResidualRotation:
    """A fixed orthogonal matrix Q [width, width], quick to multiply by.

    Q = diag(signs) (O ⊗ H): a Hadamard matrix as large as the width's power of two, and a random
    orthogonal one for the odd rest; from a fixed seed, so that results repeat.
    """

    def __init__(self, width: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._blocks = BlockHadamard(width, width)
        rest = width // self._blocks.size
        normal = torch.randn((rest, rest), generator=generator, dtype=torch.float64)
        self._rest = torch.linalg.qr(normal).Q.float()
        self._signs = torch.randint(0, 2, (width,), generator=generator).float() * 2 - 1

    @property
    def parts(self) -> Rotation:
        """The rotation as the native library takes it."""
        return Rotation(self._signs, self._rest)

    def columns(self, weight: torch.Tensor) -> torch.Tensor:
        """weight Q: a layer that reads the rotated stream, or an embedding that writes it."""
        rotated = self._blocks(weight * self._signs)
        split = rotated.view(-1, self._rest.shape[0], self._blocks.size)
        return torch.matmul(self._rest, split).view(weight.shape)

    def rows(self, weight: torch.Tensor) -> torch.Tensor:
        """Qᵀ weight: a layer that adds to the rotated stream."""
        return self.columns(weight.t().contiguous()).t().contiguous()
