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
MIN_BULK = 8  # rows from which oneDNN's kernel is the faster one, where the CPU has AMX


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


class RmsNorm:
    """x / rms(x) * gain; gain [hidden_size] is None where it is folded into the layer after.

    Zhang and Sennrich 2019.
    """

    __slots__ = ("_eps", "_shape", "eps", "gain")

    def __init__(self, width: int, eps: float, gain: torch.Tensor | None = None) -> None:
        self.gain = gain
        self.eps = eps
        self._eps = torch.tensor(eps)
        self._shape = (width,)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self._shape, self.gain, self.eps)

    def factor(self, x: torch.Tensor) -> torch.Tensor:
        """1 / rms(x) [num_tokens, 1] of float32 rows on a CPU."""
        length = torch.linalg.vector_norm(x, 2, -1, keepdim=True)
        mean_square = torch.addcmul(self._eps, length, length, value=1 / self._shape[0])
        return mean_square.rsqrt_()


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
        weight: [out_features, in_features] in float32, or what `quantize_rows` made of it, with
            the same fine rows.
        bias: [out_features] or None; stays in float32.
        norm: what the input is normalised by first. 1 / rms is a factor a row, so it only enters
            the row's scale.
        turn: a rotation of the (normalised) input, already folded into the weight.
        wide: pack for large batches only, where AMX is at hand (an output head, whose weight is
            too large to hold twice).
        fine_rows: output rows (start, stop) held to 16 bits, as a second 8-bit row of what the
            first leaves over.
    """

    __slots__ = ("_bias", "_bulk", "_fbgemm", "_fine", "_levels", "_min_bulk", "_norm", "_num_out",
                 "_onednn", "_scale", "_small", "_turn", "_zero_points", "num_bytes")  # fmt: skip

    def __init__(
        self,
        weight: torch.Tensor | Int8Rows,
        bias: torch.Tensor | None = None,
        *,
        norm: RmsNorm | None = None,
        turn: Callable[[torch.Tensor], torch.Tensor] | None = None,
        wide: bool = False,
        fine_rows: tuple[int, int] | None = None,
    ) -> None:
        if isinstance(weight, torch.Tensor):
            weight = quantize_rows(weight, fine_rows)
        rows, scale = weight
        # Overloads looked up once: the packets do it at every call.
        self._fbgemm = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        self._onednn = torch.ops.onednn.qlinear_pointwise.default
        self._levels = torch.tensor(_LEVELS)
        self._norm, self._turn = norm, turn
        start, stop = fine_rows or (0, 0)
        self._num_out, self._fine = rows.shape[0] - (stop - start), fine_rows
        self._scale = scale / _LEVELS  # and a row's own scale is then its peak
        self._zero_points = torch.zeros(rows.shape[0], dtype=torch.int32)
        self._bias = bias
        bulk = has_amx()
        self._bulk = torch.ops.onednn.qlinear_prepack(rows, None) if bulk else None
        self._small = None if wide and bulk else _fbgemm_pack(rows, self._scale)
        self._min_bulk = (1 if wide else MIN_BULK) if bulk else 2**62
        num_copies = (self._bulk is not None) + (self._small is not None)
        self.num_bytes = num_copies * rows.nbytes + 2 * self._scale.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        norm = self._norm
        scale = None
        if norm is not None:
            scale = norm.factor(x)
            x = x if norm.gain is None else x * norm.gain
        if self._turn is not None:
            x = self._turn(x)
        peak = x.abs().amax(-1, keepdim=True).clamp_min_(_TINY)
        levels = torch.mul(x, torch.div(self._levels, peak)).round_()
        out: torch.Tensor
        if x.shape[0] >= self._min_bulk:
            out = self._amx(levels)
        else:
            out = self._fbgemm(levels, 1.0, _ZERO_POINT, self._small)
        out.mul_(peak if scale is None else peak.mul_(scale))
        if self._fine is not None:
            start, stop = self._fine
            out[:, start:stop].add_(out[:, self._num_out :])
            out = out[:, : self._num_out]
        return out if self._bias is None else out.add_(self._bias)

    def _amx(self, levels: torch.Tensor) -> Any:
        return self._onednn(
            levels.to(torch.int8), 1.0, 0, self._bulk, self._scale, self._zero_points,
            None, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip


def _finer(weight: torch.Tensor, rows: Int8Rows, start: int, stop: int) -> Int8Rows:
    """More rows below: what rounding left of rows start to stop."""
    kept = rows.levels[start:stop].float() * rows.scale[start:stop, None]
    more = quantize_rows(weight[start:stop] - kept)
    return Int8Rows(*(torch.cat(pair) for pair in zip(rows, more, strict=True)))


def quantize_rows(weight: torch.Tensor, fine_rows: tuple[int, int] | None = None) -> Int8Rows:
    """Nearest int8 levels [rows, columns] and scale of each row [rows], symmetric.

    Behind them, for `fine_rows` (start, stop), once more what rounding left over.
    """
    scale = weight.abs().amax(1).clamp_min(_TINY) / _LEVELS
    rows = Int8Rows((weight / scale[:, None]).round_().to(torch.int8), scale)
    return rows if fine_rows is None else _finer(weight, rows, *fine_rows)


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
