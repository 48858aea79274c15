"""A decoder whose layers run in one call: its weights packed, its shape in C structures."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from radixlang.kernels.native.attention import DTYPES, NativeAttentionPlan, NativeOptions
from radixlang.kernels.native.grouped import GroupedWeight
from radixlang.kernels.native.library import Float, Int, Library, Long, Pointer
from radixlang.kernels.native.low_rank import NativeAdapters
from radixlang.kernels.native.packed_weight import PackedWeight
from radixlang.kernels.options import AttentionOptions

LARGEST = 127.0  # the largest quantized value


class DecoderShape(ctypes.Structure):
    """RlShape of ops.h."""

    _fields_ = [
        *((name, Long) for name in (
            "num_heads", "num_kv_heads", "head_dim", "hidden_size", "intermediate_size",
            "activation", "stream_block", "inner_block", "value_parts",
        )),
        ("norm_eps", Float),
        ("unused", Float),
    ]  # fmt: skip


class _Rotation(ctypes.Structure):
    _fields_ = [("width", Long), ("block", Long), ("signs", Pointer), ("rest", Pointer)]


_WEIGHTS = ("qkv", "o", "gate_up", "down")
_VECTORS = ("attn_gain", "qkv_bias", "qk_gain", "o_bias", "attn_post_gain", "mlp_gain",
            "gate_up_bias", "down_bias", "mlp_post_gain")  # fmt: skip


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, Pointer) for name in (*_WEIGHTS, *_VECTORS)),
        ("rope", Long),
        ("attention", NativeOptions),
    ]


class _Rope(ctypes.Structure):
    _fields_ = [("inverse_freq", Pointer), ("num_turned", Long), ("factor", Float),
                ("unused", Float)]  # fmt: skip


class _Model(ctypes.Structure):
    _fields_ = [
        ("shape", DecoderShape),
        ("num_layers", Long),
        ("layers", ctypes.POINTER(_Layer)),
        ("ropes", ctypes.POINTER(_Rope)),
        ("num_ropes", Long),
        ("after_embed", ctypes.POINTER(_Rotation)),
        ("head", Pointer),
        ("head_gain", Pointer),
        ("head_bias", Pointer),
        ("logit_soft_cap", Float),
        ("unused", Float),
    ]


class Weight(PackedWeight):
    """An 8-bit weight packed for products.

    Args:
        quantized: [out_features, in_features] int8 in [-127, 127].
        scale: [out_features] float32, the step between quantized values.
    """

    def __init__(self, library: Library, quantized: Tensor, scale: Tensor) -> None:
        if (
            quantized.dtype != torch.int8
            or quantized.dim() != 2
            or scale.shape != quantized.shape[:1]
        ):
            raise ValueError(
                f"{quantized.dtype} {tuple(quantized.shape)} with scales {tuple(scale.shape)}: "
                "a weight needs int8 [out, in] and a scale for each row"
            )
        self.out_features, self.in_features = quantized.shape
        quantized, scale = quantized.contiguous(), (scale / LARGEST).float().contiguous()
        super().__init__(library, "rl_product")
        new = library.function("rl_weight_new", Pointer, Pointer, Pointer, Long, Long)
        self.address = new(quantized.data_ptr(), scale.data_ptr(), *quantized.shape)
        if not self.address:
            raise MemoryError(f"no memory for a weight of {quantized.numel()} bytes")
        self.num_bytes = int(library.function("rl_weight_bytes", Long, Pointer)(self.address))

    def __call__(self, quantized: Tensor) -> Tensor:
        """Quantized values [num_tokens, in_features] int8 to [num_tokens, out_features] in float32.

        The factor 1 / 127 of quantized values is in it: a token's scale is then its largest size.
        """
        return self._times(quantized)


class DenseWeight(PackedWeight):
    """A weight packed for products in float32, its values as they are.

    A sum is over the inner dimension in sequence, so a row of a product has the same bits in any
    company and on any CPU.

    Args:
        values: [out_features, in_features] float32, bfloat16 or float16.
    """

    def __init__(self, library: Library, values: Tensor) -> None:
        if values.dtype not in DTYPES or values.dim() != 2:
            raise ValueError(
                f"{values.dtype} {tuple(values.shape)}: a dense weight needs float32, bfloat16 or "
                "float16 [out, in]"
            )
        self.dtype = values.dtype
        self.out_features, self.in_features = values.shape
        values = values.contiguous()
        super().__init__(library, "rl_dense_product")
        new = library.function("rl_dense_new", Pointer, Pointer, Int, Long, Long)
        self._rows = library.action("rl_dense_rows", Pointer, Pointer, Long, Pointer, Int)
        self.address = new(values.data_ptr(), DTYPES[values.dtype], *values.shape)
        if not self.address:
            raise MemoryError(f"no memory for a weight of {values.nbytes} bytes")
        self.num_bytes = int(library.function("rl_weight_bytes", Long, Pointer)(self.address))

    def __call__(self, x: Tensor) -> Tensor:
        """x [num_tokens, in_features] to [num_tokens, out_features], both in float32."""
        return self._times(x.float())

    def rows(self, numbers: Tensor) -> Tensor:
        """Rows [n, in_features] of the weight as it was given, by their numbers [n]."""
        numbers = numbers.to(torch.int64).contiguous()
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.out_features:
            raise IndexError(f"rows {numbers.tolist()} of a weight that has {self.out_features}")
        out = torch.empty((len(numbers), self.in_features), dtype=self.dtype)
        threads = torch.get_num_threads()
        self._rows(self.address, numbers.data_ptr(), len(numbers), out.data_ptr(), threads)
        return out

    def unpacked(self) -> Tensor:
        """The values [out_features, in_features] as they were given."""
        return self.rows(torch.arange(self.out_features))


AnyWeight = Weight | DenseWeight | GroupedWeight
Packed = TypeVar("Packed")  # a weight, in whichever packing


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[Packed]):
    """Weights of one layer; a gain or bias that the model has not is None.

    A gain of the stream is None too where it is folded into the weight behind it. Where the
    shape's value_parts is 2, `qkv` has the values' rows once more behind it, finer.
    """

    qkv: Packed
    o: Packed
    gate_up: Packed
    down: Packed
    attn_gain: Tensor | None = None
    qkv_bias: Tensor | None = None
    qk_gain: Tensor | None = None
    o_bias: Tensor | None = None
    attn_post_gain: Tensor | None = None
    mlp_gain: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    mlp_post_gain: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Rope:
    """Radians a token [rotary_dim / 2], and the factor on cosine and sine."""

    inverse_freq: Tensor
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Rotation:
    """y = diag(signs) x, Hadamard transformed in blocks, then mixed across them by `rest`."""

    signs: Tensor  # [width]
    rest: Tensor  # [width / block, width / block]


@dataclass(frozen=True, slots=True)
class Head(Generic[Packed]):
    """The output head and what is before and behind it."""

    weight: Packed
    gain: Tensor | None = None
    bias: Tensor | None = None
    soft_cap: float | None = None


class Transforms:
    """Rotations of matrices [count, width] in float32, by additions in a fixed order."""

    def __init__(self, library: Library) -> None:
        self._rotate = library.action("rl_rotate", Pointer, Pointer, Long, Int)
        self._hadamard = library.action("rl_hadamard", Pointer, Long, Long, Long, Int)

    def rotated(self, rotation: Rotation, x: Tensor, threads: int) -> Tensor:
        """x [..., width] times the rotation, as a new tensor."""
        found = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        described, kept = _rotation(rotation)
        rows = found.numel() // described.width
        self._rotate(ctypes.byref(described), found.data_ptr(), rows, threads)
        del kept
        return found

    def hadamard(self, x: Tensor, block: int, threads: int) -> Tensor:
        """x [..., width] times the orthonormal block Hadamard matrix, as a new tensor."""
        found = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        width = found.shape[-1]
        self._hadamard(found.data_ptr(), found.numel() // width, width, block, threads)
        return found


class NativeDecoder:
    """All layers of a decoder in one call of the library; its weights are all of one kind.

    Args:
        shape: of the model, as ops.h has it.
        after_embed: rotation of embedded tokens, None where the stream is what was embedded.
        options: how each layer attends.
        ropes: rotations of the model, `layer_rope` the index of each layer's.
    """

    def __init__(
        self,
        library: Library,
        shape: DecoderShape,
        layers: Sequence[LayerWeights[AnyWeight]],
        head: Head[AnyWeight],
        *,
        options: Sequence[AttentionOptions],
        ropes: Sequence[Rope],
        layer_rope: Sequence[int],
        after_embed: Rotation | None = None,
    ) -> None:
        asked = [NativeOptions.of(each, int(shape.num_heads)) for each in options]
        self._kept: list[object] = [layers, head, asked]  # what the structures point to
        self._model = _Model(
            shape=shape,
            num_layers=len(layers),
            layers=(_Layer * len(layers))(*map(self._layer, layers, asked, layer_rope)),
            ropes=(_Rope * len(ropes))(*map(self._rope, ropes)),
            num_ropes=len(ropes),
            head=head.weight.address,
            head_gain=self._vector(head.gain),
            head_bias=self._vector(head.bias),
            logit_soft_cap=head.soft_cap or 0.0,
        )
        if after_embed is not None:
            rotation, tensors = _rotation(after_embed)
            self._kept += [rotation, tensors]
            self._model.after_embed = ctypes.pointer(rotation)
        self._vocab_size = head.weight.out_features
        self._step = library.action("rl_step", *[Pointer] * 5, Int)
        self._logits = library.action("rl_logits", Pointer, Pointer, Long, Pointer, Int)

    def step(
        self,
        stream: Tensor,
        plan: NativeAttentionPlan,
        pools: ctypes.Array[Any],
        adapters: NativeAdapters | None = None,
    ) -> None:
        """Run all layers over a plan's rows; keys and values go to their slots.

        Args:
            stream: embedded tokens [num_tokens, hidden_size], contiguous float32; left as the
                residual stream.
            pools: the structures of the layers' pools.
            adapters: what is added to products of some rows.

        Raises:
            ValueError: the stream has other rows than the plan.
            MemoryError: there is none for the rows' intermediate values.
        """
        expected = (plan.num_tokens, int(self._model.shape.hidden_size))
        if stream.shape != expected or len(pools) != self._model.num_layers:
            raise ValueError(
                f"the stream is {tuple(stream.shape)} and there are {len(pools)} pools; this step "
                f"needs {expected} and {self._model.num_layers}"
            )
        model, threads = ctypes.byref(self._model), torch.get_num_threads()
        added = None if adapters is None else adapters.address
        self._step(model, plan.handle, pools, stream.data_ptr(), added, threads)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab_size] in float32 of rows of the residual stream [n, hidden_size]."""
        hidden = hidden.contiguous()
        out = torch.empty((hidden.shape[0], self._vocab_size))
        model, threads = ctypes.byref(self._model), torch.get_num_threads()
        self._logits(model, hidden.data_ptr(), hidden.shape[0], out.data_ptr(), threads)
        return out

    def _vector(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        kept = tensor.detach().float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()

    def _layer(self, layer: LayerWeights[AnyWeight], options: NativeOptions, rope: int) -> _Layer:
        weights = {name: getattr(layer, name).address for name in _WEIGHTS}
        vectors = {name: self._vector(getattr(layer, name)) for name in _VECTORS}
        return _Layer(rope=rope, attention=options, **weights, **vectors)

    def _rope(self, rope: Rope) -> _Rope:
        rotated = rope.inverse_freq
        return _Rope(self._vector(rotated), len(rotated), rope.factor, 0.0)


def _rotation(rotation: Rotation) -> tuple[_Rotation, tuple[Tensor, Tensor]]:
    signs, rest = rotation.signs.float().contiguous(), rotation.rest.float().contiguous()
    block = len(signs) // len(rest)
    return _Rotation(len(signs), block, signs.data_ptr(), rest.data_ptr()), (signs, rest)
