"""Weights in the blocks of a GGUF file, served from their own bits."""

from __future__ import annotations

import ctypes
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
    def num_rows(self) -> int:
        """Rows of the matrix."""
        return len(self.blocks)

    @property
    def width(self) -> int:
        """Weights of a row."""
        size, num_bytes = BLOCKS[self.kind]
        return int(self.blocks.shape[1]) // num_bytes * size


@dataclass(frozen=True, slots=True)
class LaidOutRows:
    """Rows of a matrix as a `GroupedWeight` had them in its memory.

    Attributes:
        kind: GGUF's number of the block type, a key of BLOCKS.
        num_rows: of the matrix.
        width: weights of a row.
        memory: bytes [n], which are only read; they may be mapped from a file.
    """

    kind: int
    num_rows: int
    width: int
    memory: NDArray[np.uint8]


class GroupedWeight(PackedWeight):
    """Weights of few bits laid out for products, in as many bytes as stored.

    A product's columns are those of all parts, one after another; parts may be of several kinds.
    Parts that are laid out already stay in their memory.

    Raises:
        ValueError: a part is of no kind that is known, its rows are not whole blocks of one
            length, or its memory has another size than such a part takes.
    """

    def __init__(self, library: Library, parts: Sequence[StoredRows | LaidOutRows]) -> None:
        super().__init__(library, "rl_grouped_product")
        self._parts: list[int] = []
        self._given = [part for part in parts if isinstance(part, LaidOutRows)]
        self._borrowed: list[int] = []  # parts over memory that is not the library's
        self._forget = library.function("rl_weight_forget", None, Pointer)
        self._rows = library.function("rl_grouped_rows", None, Pointer, Pointer, Long, Pointer)
        append = library.function("rl_weight_append", None, Pointer, Pointer)
        self._memory = library.function("rl_weight_memory", Pointer, Pointer, Pointer)
        self.in_features = parts[0].width if parts and parts[0].kind in BLOCKS else 0
        for part in parts:
            if part.kind in BLOCKS and part.width != self.in_features:
                raise ValueError(f"rows of {part.width} weights beside rows of {self.in_features}")
            if isinstance(part, LaidOutRows):
                self._borrowed.append(self._over(library, part))
                self._parts.append(self._borrowed[-1])
            else:
                self._parts.append(self._packed(library, part))
        for address, behind in zip(self._parts, self._parts[1:], strict=False):
            append(address, behind)
        self.address = self._parts[0]
        self._shapes = [(part.kind, part.num_rows, part.width) for part in parts]
        self.out_features = sum(rows for _, rows, _ in self._shapes)
        self.num_bytes = sum(part.memory.nbytes for part in self.laid_out())

    def laid_out(self) -> list[LaidOutRows]:
        """The parts in the weight's own memory, to be read while it lives."""
        return [
            LaidOutRows(*shape, self._bytes_of(address))
            for shape, address in zip(self._shapes, self._parts, strict=True)
        ]

    def _bytes_of(self, address: int) -> NDArray[np.uint8]:
        size = ctypes.c_int64()
        start = self._memory(address, ctypes.byref(size))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size.value).from_address(start))

    def _over(self, library: Library, part: LaidOutRows) -> int:
        over = library.function("rl_grouped_over", Pointer, Int, Pointer, Long, Long, Long)
        memory = part.memory
        address = over(part.kind, memory.ctypes.data, memory.nbytes, part.num_rows, part.width)
        if not address:
            raise ValueError(
                f"{memory.nbytes} bytes are no {part.num_rows} rows of {part.width} weights of "
                f"type {part.kind}"
            )
        return int(address)

    def _packed(self, library: Library, part: StoredRows) -> int:
        _, num_bytes = BLOCKS.get(part.kind, (0, 1))
        is_known = bool(self.in_features) and part.kind in BLOCKS
        is_whole = part.blocks.dtype == np.uint8 and part.blocks.ndim == 2
        if not is_known or not is_whole or part.blocks.shape[1] % num_bytes:
            raise ValueError(f"blocks {part.blocks.shape} of type {part.kind} are none known here")
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
            (self._forget if address in self._borrowed else self._free)(address)
