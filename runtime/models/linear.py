"""Linear layers behind one call: `layer(x)` maps [num_tokens, in] to [num_tokens, out]."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F

_LEVELS = 127.0
_ZERO_POINT = 128  # FBGEMM's activations are unsigned
_TINY = 1e-30


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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)


class Int8Rows(NamedTuple):
    """An 8-bit weight: levels [out_features, in_features] and a scale a row [out_features]."""

    levels: torch.Tensor
    scale: torch.Tensor


class Int8Linear:
    """8-bit weights with a scale an output row, 8-bit activations with a scale a token, on a CPU.

    Products are summed in integers, so a token's result has the same bits alone and in any batch,
    whichever kernel runs: FBGEMM's (AVX2 and up), or, where the CPU has AMX tiles and the batch
    is large enough to fill them, oneDNN's from a second packing.

    Args:
        weight: [out_features, in_features] in float32, or quantised already.
        bias: [out_features] or None; stays in float32.
        wide: pack for large batches only, where AMX is at hand (an output head, whose weight is
            too large to hold twice).
        turn: a rotation of the input, already folded into the weight.
        fine_rows: output rows (start, stop) held to 16 bits, as a second 8-bit row of what the
            first leaves over.
    """

    __slots__ = ("_bias", "_bulk", "_fbgemm", "_fine", "_levels", "_min_bulk", "_num_out",
                 "_onednn", "_scale", "_small", "_turn", "_zero_points", "num_bytes")  # fmt: skip

    def __init__(
        self,
        weight: torch.Tensor | Int8Rows,
        bias: torch.Tensor | None = None,
        *,
        wide: bool = False,
        turn: Callable[[torch.Tensor], torch.Tensor] | None = None,
        fine_rows: tuple[int, int] | None = None,
    ) -> None:
        rows, self._scale = quantize_rows(weight) if isinstance(weight, torch.Tensor) else weight
        # Overloads looked up once: the packets do it at every call.
        self._fbgemm = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        self._onednn = torch.ops.onednn.qlinear_pointwise.default
        self._levels = torch.tensor(_LEVELS)
        self._turn = turn
        self._num_out, self._fine = rows.shape[0], fine_rows
        if fine_rows is not None:
            if not isinstance(weight, torch.Tensor):
                raise TypeError("fine_rows needs the float32 weight, to hold what rounding left")
            start, stop = fine_rows
            kept = rows[start:stop].float() * self._scale[start:stop, None]
            more, scale = quantize_rows(weight[start:stop] - kept)
            rows, self._scale = torch.cat((rows, more)), torch.cat((self._scale, scale))
        self._zero_points = torch.zeros(rows.shape[0], dtype=torch.int32)
        self._bias = bias
        bulk = has_amx()
        self._bulk = torch.ops.onednn.qlinear_prepack(rows, None) if bulk else None
        self._small = None if wide and bulk else _fbgemm_pack(rows, self._scale)
        self._min_bulk = (1 if wide else 48) if bulk else 2**62
        num_copies = (self._bulk is not None) + (self._small is not None)
        self.num_bytes = num_copies * rows.nbytes + 2 * self._scale.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._turn is not None:
            x = self._turn(x)
        peak = x.abs().amax(-1, keepdim=True).clamp_min_(_TINY)
        levels = torch.mul(x, torch.div(self._levels, peak)).round_()
        out: torch.Tensor
        if x.shape[0] >= self._min_bulk:
            out = self._amx(levels)
        else:
            out = self._fbgemm(levels, 1.0, _ZERO_POINT, self._small)
        out.mul_(peak.mul_(1 / _LEVELS))
        if self._fine is not None:
            start, stop = self._fine
            out[:, start:stop] += out[:, self._num_out :]
            out = out[:, : self._num_out]
        return out if self._bias is None else out.add_(self._bias)

    def _amx(self, levels: torch.Tensor) -> Any:
        return self._onednn(
            levels.to(torch.int8), 1.0, 0, self._bulk, self._scale, self._zero_points,
            None, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip


def quantize_rows(weight: torch.Tensor) -> Int8Rows:
    """Nearest int8 levels [rows, columns] and scale of each row [rows], symmetric."""
    scale = weight.abs().amax(1).clamp_min(_TINY) / _LEVELS
    return Int8Rows((weight / scale[:, None]).round_().to(torch.int8), scale)


def has_amx() -> bool:
    """Whether this CPU multiplies 8-bit tiles and oneDNN may use them."""
    return bool(torch.cpu._is_amx_tile_supported() and torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def warn_once_in_silence() -> None:
    """Let torch say now, unheard, that quantised tensors will go; it says so once a process.

    FBGEMM's packing takes no other kind. Not safe beside threads that set warning filters, so the
    loader calls it before it starts any.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _quantized(torch.zeros((1, 1), dtype=torch.int8), torch.ones(1))


def _quantized(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros(rows.shape[0], dtype=torch.int64)
    return torch._make_per_channel_quantized_tensor(rows, scale.double(), zeros, 0)


def _fbgemm_pack(rows: torch.Tensor, scale: torch.Tensor) -> Any:
    return torch.ops.quantized.linear_prepack(_quantized(rows, scale), None)
