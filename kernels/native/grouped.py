"""Weights in the blocks of a GGUF file, served from their own bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.native.library import Int, Library, Long, Pointer
from radixlang.kernels.native.packed_weight import PackedWeight

# GGUF's numbers of the block types that the library multiplies: weights and bytes of a block
BLOCKS = {
    2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),  # Q4_0 Q4_1 Q5_0 Q5_1 Q8_0
    12: (256, 144), 13: (256, 176), 14: (256, 210),  # Q4_K Q5_K Q6_K
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of a matrix as a file has them.

    Attributes:
        kind: GGUF's number of the block type, a key of BLOCKS.
        blocks: bytes [rows, bytes a row]; a mapped file's, as they are only read.
        order: the stored row of each row of the matrix [rows]; None: as they are stored.
    """

    kind: int
    blocks: NDArray[np.uint8]
    order: NDArray[np.int64] | None = None

    @property
    def width(self) -> int:
        """Weights of a row."""
        size, num_bytes = BLOCKS[self.kind]
        return int(self.blocks.shape[1]) // num_bytes * size


class GroupedWeight(PackedWeight):
    """Weights of few bits laid out for products, in as many bytes as stored.

    A product's columns are those of all parts, one after another; parts may be of several kinds.

    Raises:
        ValueError: a part is of no kind that is known, or its rows are not whole blocks of one
            length.
    """

    def __init__(self, library: Library, parts: Sequence[StoredRows]) -> None:
        super().__init__(library, "rl_grouped_product")
        self._parts: list[int] = []
        self._rows = library.function("rl_grouped_rows", None, Pointer, Pointer, Long, Pointer)
        append = library.function("rl_weight_append", None, Pointer, Pointer)
        size = library.function("rl_weight_bytes", Long, Pointer)
        self.in_features = parts[0].width if parts and parts[0].kind in BLOCKS else 0
        for part in parts:
            self._parts.append(self._packed(library, part))
        for address, behind in zip(self._parts, self._parts[1:], strict=False):
            append(address, behind)
        self.address = self._parts[0]
        self.out_features = sum(len(part.blocks) for part in parts)
        self.num_bytes = sum(int(size(address)) for address in self._parts)

    def _packed(self, library: Library, part: StoredRows) -> int:
        _, num_bytes = BLOCKS.get(part.kind, (0, 1))
        is_whole = part.blocks.dtype == np.uint8 and part.blocks.ndim == 2
        if not self.in_features or not is_whole or part.blocks.shape[1] % num_bytes:
            raise ValueError(f"blocks {part.blocks.shape} of type {part.kind} are none known here")
        if part.width != self.in_features:
            raise ValueError(f"rows of {part.width} weights beside rows of {self.in_features}")
        new = library.function("rl_grouped_new", Pointer, Int, Pointer, Pointer, Long, Long)
        blocks = np.ascontiguousarray(part.blocks)
        order = None if part.order is None else np.ascontiguousarray(part.order, np.int64)
        places = (None if each is None else each.ctypes.data for each in (blocks, order))
        address = new(part.kind, *places, len(blocks), self.in_features)
        if not address:
            raise MemoryError(f"no memory for a weight of {blocks.nbytes} bytes")
        return int(address)

    def __call__(self, x: Tensor) -> Tensor:
        """x [num_tokens, in_features] in float32 to [num_tokens, out_features].

        x is rounded to 8 bits, every 32 values of a token with a scale of their own.
        """
        return self._times(x.float())

    def rows(self, numbers: Tensor) -> Tensor:
        """Rows [n, in_features] in float32 of a weight of one part, by their numbers [n]."""
        numbers = numbers.to(torch.int64).contiguous()
        most = self.out_features if len(self._parts) == 1 else 0
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < most:
            raise IndexError(f"rows {numbers.tolist()} of a weight that has {most} of one part")
        out = torch.empty((len(numbers), self.in_features))
        self._rows(self.address, numbers.data_ptr(), len(numbers), out.data_ptr())
        return out

    def __del__(self) -> None:
        for address in getattr(self, "_parts", ()):
            self._free(address)
