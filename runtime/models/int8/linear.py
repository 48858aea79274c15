"""Products of 8-bit values with 8-bit weights on a CPU, summed in integers."""

from __future__ import annotations

import warnings
from functools import cache
from typing import NamedTuple, Protocol

import torch

LARGEST = 127.0  # the largest quantized value
TINY = 1e-30  # a row of zeros has this peak
_ZERO_POINT = 128  # FBGEMM's activations are unsigned
MIN_BULK = 5  # rows from which oneDNN's kernel is the faster one, where the CPU has AMX
TILE_ROWS = 16  # of AMX


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
    """Quantized of tokens times an 8-bit weight with a scale an output row.

    Sums are of integers, so a token's result has the same bits alone and in any batch, whichever
    kernel runs: FBGEMM's (AVX2 and up), or, where the CPU has AMX tiles and the batch is large
    enough to fill them, oneDNN's from a second packing.

    Args:
        rows: the weight.
        wide: pack for large batches only, where AMX is at hand (an output head, whose weight is
            too large to hold twice).
    """

    __slots__ = ("_bulk", "_fbgemm", "_min_bulk", "_onednn", "_scale", "_small", "_zero_points",
                 "num_bytes")  # fmt: skip

    def __init__(self, rows: Int8Rows, *, wide: bool = False) -> None:
        quantized, scale = rows
        # Overloads looked up once: the packets do it at every call.
        self._fbgemm = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        self._onednn = torch.ops.onednn.qlinear_pointwise.default
        self._scale = scale / LARGEST  # and a token's scale is then its peak
        self._zero_points = torch.zeros(quantized.shape[0], dtype=torch.int32)
        bulk = has_amx()
        self._bulk = torch.ops.onednn.qlinear_prepack(quantized, None) if bulk else None
        self._small = None if wide and bulk else _fbgemm_pack(quantized, self._scale)
        self._min_bulk = (1 if wide else MIN_BULK) if bulk else 2**62
        num_copies = (self._bulk is not None) + (self._small is not None)
        self.num_bytes = num_copies * quantized.nbytes + 2 * self._scale.nbytes

    def __call__(self, quantized: torch.Tensor) -> torch.Tensor:
        """Int8 values [num_tokens, in_features] to [num_tokens, out_features] in float32."""
        if quantized.shape[0] < self._min_bulk:
            small: torch.Tensor = self._fbgemm(quantized.float(), 1.0, _ZERO_POINT, self._small)
            return small
        large: torch.Tensor = self._onednn(
            quantized, 1.0, 0, self._bulk, self._scale, self._zero_points,
            None, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return large


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


def whole_tiles(num_rows: int) -> int:
    """How many rows to multiply, of which the last are padding.

    oneDNN makes machine code for every number of rows that it meets, 0.3 ms and 0.3 MB a weight's
    shape; and it multiplies a multiple of 16 rows faster than one or two less.
    """
    if num_rows < MIN_BULK or not has_amx():
        return num_rows
    return -(-num_rows // TILE_ROWS) * TILE_ROWS


@cache
def has_amx() -> bool:
    """Whether this CPU multiplies 8-bit tiles and oneDNN may use them."""
    return bool(torch.cpu._is_amx_tile_supported() and torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def warn_once_in_silence() -> None:
    """Hide torch's deprecation warning of quantised tensors, which comes once a process.

    FBGEMM's packing takes no other kind. Not safe while threads set warning filters, so the
    loader calls it before it starts any.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _quantized(torch.zeros((1, 1), dtype=torch.int8), torch.ones(1))


def _quantized(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros(rows.shape[0], dtype=torch.int64)
    return torch._make_per_channel_quantized_tensor(rows, scale.double(), zeros, 0)


def _fbgemm_pack(rows: torch.Tensor, scale: torch.Tensor) -> torch.ScriptObject:
    packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(_quantized(rows, scale), None)
    return packed
