"""Products of 8-bit values with 8-bit weights on a CPU, summed in integers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

LARGEST = 127.0  # the largest quantized value
TINY = 1e-30  # a row of zeros has this peak


class Int8Rows(NamedTuple):
    """An 8-bit weight: values [out_features, in_features] and a scale a row [out_features]."""

    quantized: torch.Tensor
    scale: torch.Tensor


class Product(Protocol):
    """Quantized of tokens times an 8-bit weight, in whichever packing."""

    num_bytes: int

    def __call__(self, quantized: torch.Tensor) -> torch.Tensor:
        """Int8 values [num_tokens, in_features] to [num_tokens, out_features] in float32."""
        ...


class Int8Product:
    """Quantized values of tokens times an 8-bit weight with a scale an output row.

    Sums are of integers, so a token's result has the same bits alone and in any batch.
    """

    __slots__ = ("_scale", "_weight", "num_bytes")

    def __init__(self, rows: Int8Rows) -> None:
        self._weight = rows.quantized.contiguous().t()
        self._scale = rows.scale / LARGEST  # and a token's scale is then its peak
        self.num_bytes = rows.quantized.nbytes + self._scale.nbytes

    def __call__(self, quantized: torch.Tensor) -> torch.Tensor:
        """Int8 values [num_tokens, in_features] to [num_tokens, out_features] in float32."""
        return torch._int_mm(quantized, self._weight).float() * self._scale


def _finer(weight: torch.Tensor, rows: Int8Rows, start: int, stop: int) -> Int8Rows:
    """More rows below: what rounding left of rows start to stop."""
    kept = rows.quantized[start:stop].float() * rows.scale[start:stop, None]
    more = quantize_rows(weight[start:stop] - kept)
    return Int8Rows(*(torch.cat(pair) for pair in zip(rows, more, strict=True)))


def quantize_rows(weight: torch.Tensor, fine_rows: tuple[int, int] | None = None) -> Int8Rows:
    """Nearest int8 values [rows, columns] and scale of each row [rows], symmetric.

    Behind them, for `fine_rows` (start, stop), once more what rounding left over.
    """
    scale = weight.abs().amax(1).clamp_min(TINY) / LARGEST
    rows = Int8Rows((weight / scale[:, None]).round_().to(torch.int8), scale)
    return rows if fine_rows is None else _finer(weight, rows, *fine_rows)
