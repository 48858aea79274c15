"""Assembles a `Decoder` from a weight source: fuses, reorders and packs its matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from radixlang.errors import ModelFormatError
from radixlang.kernels.native.decoder import AnyWeight, DenseWeight, Head, LayerWeights
from radixlang.kernels.native.library import Library
from radixlang.progress import doing, each
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.decoder import (
    Decoder,
    DecoderLayer,
    Embedding,
    PackedEmbedding,
    TableEmbedding,
)
from radixlang.runtime.models.layers.linear import (
    DenseLinear,
    GroupedLinear,
    Linear,
    NativeLinear,
    RmsNorm,
    TransposedLinear,
)
from radixlang.runtime.models.layers.native import NativeLayers, shape_of, suits
from radixlang.runtime.models.layers.rotary import interleave_rows
from radixlang.runtime.models.weights import WeightSource

Outer = TypeVar("Outer")
Layer = TypeVar("Layer")
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]
_GATE_UP = ("gate", "up")


class Assembler:
    """Takes a model's tensors one by one, checks their shapes and brings them in order."""

    def __init__(
        self, config: ModelConfig, source: WeightSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self._source = source
        self._dtype = dtype
        self._device = device
        # A corrupt file can claim millions of layers: check the last one before any is built.
        last = f"layers.{config.num_layers - 1}.o.weight"
        if last not in source:
            source.take(last)  # raises an error that names the missing tensor

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """Weight [rows, columns] in the model's dtype and on its device."""
        return self._take(name + ".weight", (rows, columns))

    def gain(self, name: str, size: int) -> torch.Tensor:
        """Gain of a norm [size], the family's offset added."""
        gain = self._take(name + ".weight", (size,), torch.float32)
        if not self._source.norm_offset_folded:
            gain = gain + self.config.norm_offset
        return gain.to(self._dtype)

    def norm(self, name: str) -> RmsNorm:
        """A norm of the residual stream."""
        width = self.config.hidden_size
        return RmsNorm(width, self.config.norm_eps, self.gain(name, width))

    def post_norm(self, name: str) -> RmsNorm | None:
        """A norm after a sublayer; None if the family has none."""
        return self.norm(name) if self.config.post_norms else None

    def bias(self, name: str, size: int) -> torch.Tensor | None:
        """Bias [size]; None if the checkpoint has none."""
        full = name + ".bias"
        return self._take(full, (size,)) if full in self._source else None

    def qkv(self, prefix: str) -> torch.Tensor:
        """Fused projection [(num_heads + 2 num_kv_heads) head_dim, hidden]."""
        sizes, hidden = self._qkv_sizes(), self.config.hidden_size
        if f"{prefix}.qkv.weight" in self._source:
            fused = self.matrix(f"{prefix}.qkv", sum(sizes), hidden)
            return torch.cat(self._pair_up(list(torch.split(fused, sizes))))
        parts = zip("qkv", sizes, strict=True)
        weights = [self.matrix(f"{prefix}.{part}", size, hidden) for part, size in parts]
        return torch.cat(self._pair_up(weights))

    def qkv_bias(self, prefix: str) -> torch.Tensor | None:
        """Its bias [(num_heads + 2 num_kv_heads) head_dim]; None if there is none."""
        sizes = self._qkv_sizes()
        fused = self.bias(f"{prefix}.qkv", sum(sizes))
        if fused is not None:
            return torch.cat(self._pair_up(list(torch.split(fused, sizes))))
        parts = zip("qkv", sizes, strict=True)
        biases = [self.bias(f"{prefix}.{part}", size) for part, size in parts]
        present = [bias for bias in biases if bias is not None]
        return torch.cat(self._pair_up(present)) if len(present) == 3 else None

    def gate_up(self, prefix: str) -> torch.Tensor:
        """Fused gate and up projection [2 intermediate, hidden]."""
        size, hidden = self.config.intermediate_size, self.config.hidden_size
        if f"{prefix}.gate_up.weight" in self._source:
            return self.matrix(f"{prefix}.gate_up", 2 * size, hidden)
        return torch.cat([self.matrix(f"{prefix}.{part}", size, hidden) for part in _GATE_UP])

    def gate_up_bias(self, prefix: str) -> torch.Tensor | None:
        """Its bias [2 intermediate]; None if there is none."""
        size = self.config.intermediate_size
        biases = [self.bias(f"{prefix}.{part}", size) for part in _GATE_UP]
        present = [bias for bias in biases if bias is not None]
        return torch.cat(present) if len(present) == 2 else None

    def qk_gain(self, prefix: str) -> torch.Tensor | None:
        """Gains of the query and key norms [num_heads + num_kv_heads, head_dim]."""
        config = self.config
        if not config.qk_norm:
            return None
        gains = []
        for part, count in (("q_norm", config.num_heads), ("k_norm", config.num_kv_heads)):
            gain = self.gain(f"{prefix}.{part}", config.head_dim)
            if not self._source.pairs_side_by_side:
                gain = interleave_rows(gain, 1, config.ropes[0].rotary_dim)
            gains.append(gain.expand(count, -1))
        return torch.cat(gains)

    def _qkv_sizes(self) -> list[int]:
        config = self.config
        counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        return [count * config.head_dim for count in counts]

    def _pair_up(self, qkv: list[torch.Tensor]) -> list[torch.Tensor]:
        config = self.config
        if self._source.pairs_side_by_side or not qkv:
            return qkv
        rotary_dim = config.ropes[0].rotary_dim
        q = interleave_rows(qkv[0], config.num_heads, rotary_dim)
        k = interleave_rows(qkv[1], config.num_kv_heads, rotary_dim)
        return [q, k, qkv[2]]

    def _take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        tensor = self._source.take(name)
        if tuple(tensor.shape) != shape:
            raise ModelFormatError(
                f"{self._source.origin}: tensor {name!r} has shape {tuple(tensor.shape)}, the "
                f"configuration asks for {shape}; weights and configuration belong to "
                "different models"
            )
        return tensor.to(self._device, dtype or self._dtype)


def build_decoder(
    config: ModelConfig,
    source: WeightSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    library: Library | None = None,
) -> Decoder:
    """Assemble a decoder from the checkpoint's own values, nothing folded or rotated.

    With the native library its layers run in one call; else in plain torch. A head tied to the
    embedding shares its memory.

    Raises:
        ModelFormatError: a tensor is missing or has another shape than the configuration says.
    """
    assembler = Assembler(config, source, dtype, device)
    if library is not None and (device.type != "cpu" or not suits(config)):
        library = None
    make = _make_linear(library, dtype, device)
    vocab_size, hidden_size = config.vocab_size, config.hidden_size

    def outer() -> tuple[Embedding, Linear]:
        table = assembler.matrix("embed", vocab_size, hidden_size)
        tied = config.tie_embeddings or "head.weight" not in source
        bias = assembler.bias("head", vocab_size)
        if not tied:
            head = make(assembler.matrix("head", vocab_size, hidden_size), bias)
            return TableEmbedding(table), head
        if library is None:
            return TableEmbedding(table), DenseLinear(table, bias)
        weight = DenseWeight(library, table)
        return PackedEmbedding(weight), NativeLinear(weight, bias)

    def layer(index: int) -> DecoderLayer:
        return _layer(assembler, f"layers.{index}", make)

    (embed, head), layers = in_threads(outer, layer, config.num_layers)
    norm = assembler.norm("norm")
    native = None
    if library is not None:
        native = native_layers(library, config, layers, head, norm)
    return Decoder(config, layers, embed, norm, head, device=device, native=native)


def _make_linear(library: Library | None, dtype: torch.dtype, device: torch.device) -> MakeLinear:
    """What packs a projection: the fastest for the device and dtype."""
    if library is not None:
        return lambda weight, bias: NativeLinear(DenseWeight(library, weight), bias)
    transposed = device.type == "cpu" and dtype == torch.float32
    return TransposedLinear if transposed else DenseLinear


def native_layers(
    library: Library,
    config: ModelConfig,
    layers: Sequence[DecoderLayer],
    head: Linear,
    norm: RmsNorm,
) -> NativeLayers:
    """Layers and a head, whose projections are native, for the library."""
    return NativeLayers(
        library,
        config,
        shape_of(config),
        [_native_layer(layer) for layer in layers],
        _native_head(head, norm, config),
    )


def _native_layer(layer: DecoderLayer) -> LayerWeights[AnyWeight]:
    (qkv, qkv_bias), (o, o_bias) = _parts(layer.qkv), _parts(layer.o)
    (gate_up, gate_up_bias), (down, down_bias) = _parts(layer.gate_up), _parts(layer.down)
    return LayerWeights(
        qkv, o, gate_up, down,
        attn_gain=layer.attn_norm.gain,
        qkv_bias=qkv_bias,
        qk_gain=layer.qk_gain,
        o_bias=o_bias,
        attn_post_gain=_gain(layer.attn_post_norm),
        mlp_gain=layer.mlp_norm.gain,
        gate_up_bias=gate_up_bias,
        down_bias=down_bias,
        mlp_post_gain=_gain(layer.mlp_post_norm),
    )  # fmt: skip


def _gain(norm: RmsNorm | None) -> torch.Tensor | None:
    return None if norm is None else norm.gain


def _native_head(linear: Linear, norm: RmsNorm, config: ModelConfig) -> Head[AnyWeight]:
    weight, bias = _parts(linear)
    return Head(weight, norm.gain, bias, config.logit_soft_cap)


def _parts(linear: Linear) -> tuple[AnyWeight, torch.Tensor | None]:
    assert isinstance(linear, (NativeLinear, GroupedLinear))
    return linear.weight, linear.bias


def in_threads(
    outer: Callable[[], Outer],
    layer: Callable[[int], Layer],
    num_layers: int,
    what: str = "loading layers",
) -> tuple[Outer, list[Layer]]:
    """Run `outer()` and `layer(i)` for every layer, a few at once, each on one core.

    Many small tensors are faster in parallel than each on all cores, and on a busy machine the
    barriers of OpenMP made loading ten times slower.
    """
    num_threads = torch.get_num_threads()
    workers = max(1, min(4, num_threads))
    try:
        with ThreadPoolExecutor(
            workers, "radixlang-load", lambda: torch.set_num_threads(1)
        ) as pool:
            first = pool.submit(outer)
            made = pool.map(layer, range(num_layers))
            layers = list(each(made, what, num_layers, "layer"))
            with doing("loading the embeddings"):
                return first.result(), layers
    finally:
        # A worker's setting also applies to all threads made later, such as the engine's.
        torch.set_num_threads(num_threads)


def _layer(assembler: Assembler, prefix: str, make_linear: MakeLinear) -> DecoderLayer:
    config = assembler.config
    hidden = config.hidden_size
    attention_width = config.num_heads * config.head_dim
    o = assembler.matrix(f"{prefix}.o", hidden, attention_width)
    down = assembler.matrix(f"{prefix}.down", hidden, config.intermediate_size)
    return DecoderLayer(
        attn_norm=assembler.norm(f"{prefix}.attn_norm"),
        qkv=make_linear(assembler.qkv(prefix), assembler.qkv_bias(prefix)),
        o=make_linear(o, assembler.bias(f"{prefix}.o", hidden)),
        mlp_norm=assembler.norm(f"{prefix}.mlp_norm"),
        gate_up=make_linear(assembler.gate_up(prefix), assembler.gate_up_bias(prefix)),
        down=make_linear(down, assembler.bias(f"{prefix}.down", hidden)),
        qk_gain=assembler.qk_gain(prefix),
        attn_post_norm=assembler.post_norm(f"{prefix}.attn_post_norm"),
        mlp_post_norm=assembler.post_norm(f"{prefix}.mlp_post_norm"),
    )
