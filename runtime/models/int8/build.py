"""Builds a decoder in 8 bits: the stream rotated where it can be, every weight quantized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch

from radixlang.kernels.native.decoder import AnyWeight, Head, LayerWeights, Weight
from radixlang.kernels.native.library import Library
from radixlang.runtime.models.assemble import Assembler, in_threads
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.decoder import Embedding, TableEmbedding
from radixlang.runtime.models.int8.adapter_fold import AdapterFold
from radixlang.runtime.models.int8.decoder import Int8Decoder
from radixlang.runtime.models.int8.linear import (
    Int8Product,
    Int8Rows,
    Product,
    quantize_rows,
)
from radixlang.runtime.models.int8.ops import OpsShape, plain_ops
from radixlang.runtime.models.int8.rotation import BlockHadamard, ResidualRotation
from radixlang.runtime.models.int8.weight_cache import RowStore
from radixlang.runtime.models.layers.native import NativeLayers, shape_of, suits
from radixlang.runtime.models.weights import WeightSource

STREAM_BLOCK = 128
HEAD_PIECE = 8192  # rows
Biases = tuple[torch.Tensor | None, torch.Tensor | None]


def build_int8_decoder(
    config: ModelConfig,
    source: WeightSource,
    store: RowStore | None = None,
    library: Library | None = None,
) -> Int8Decoder:
    """Assemble a decoder with 8-bit weights on the CPU.

    With the native library its layers run in one call; else in plain torch.

    In exact arithmetic it computes what the checkpoint does. Families with norms after their
    sublayers (Gemma) keep their stream and gains: such a norm's gain does not commute with a
    rotation, and their gains tame the stream's large channels. There every product's input is
    rotated in the loop, in blocks. What was folded and rounded goes into the store, and comes from
    there at the next start.

    Raises:
        ModelFormatError: a tensor is missing or has another shape than the configuration says.
    """
    if not suits(config):
        library = None
    folder = _Folder(config, source, store or RowStore(None), library)
    (embed, head), layers = in_threads(folder.outer, folder.layer, config.num_layers)
    shape = folder.shape()
    native = None
    if library is not None:
        native = _native(library, config, shape, layers, head, folder.rotation)
    return Int8Decoder(
        config, layers, embed, head, plain_ops(shape),
        after_embed=folder.after_embed, native=native, adapter_fold=folder.adapter_fold(),
    )  # fmt: skip


def _native(
    library: Library,
    config: ModelConfig,
    shape: OpsShape,
    layers: Sequence[LayerWeights[Product]],
    head: Head[Product],
    rotation: ResidualRotation | None,
) -> NativeLayers:
    """The layers and the head, whose products are native weights, for the library."""
    return NativeLayers(
        library,
        config,
        shape_of(
            config, stream_block=shape.stream_block, inner_block=shape.inner_block, value_parts=2
        ),
        cast(Sequence[LayerWeights[AnyWeight]], layers),
        cast(Head[AnyWeight], head),
        None if rotation is None else rotation.parts,
    )


class _Folder:
    """Folds norms and rotations into one model's weights."""

    def __init__(
        self, config: ModelConfig, source: WeightSource, store: RowStore, library: Library | None
    ) -> None:
        self._library = library
        self._config = config
        self._store = store
        self._source = source
        self._assembler = Assembler(config, source, torch.float32, torch.device("cpu"))
        hidden = config.hidden_size
        self.rotation = None if config.post_norms else ResidualRotation(hidden, library=library)
        self._stream = BlockHadamard(hidden, STREAM_BLOCK, library) if config.post_norms else None
        self._inner = BlockHadamard(config.intermediate_size, library=library)
        self._heads = BlockHadamard(config.head_dim, library=library)  # attention commutes with it
        self._folded_gains: dict[str, torch.Tensor] = {}
        first = (config.num_heads + config.num_kv_heads) * config.head_dim
        # Values are held finer: the value of the first token, which every token attends to, is
        # nearly zero by cancellation, and an error in it is added to the whole text.
        self._value_rows = (first, first + config.num_kv_heads * config.head_dim)

    @property
    def after_embed(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Embedded tokens are rotated when looked up: cheaper than rotating the whole table."""
        return None if self.rotation is None else self.rotation.columns

    def shape(self) -> OpsShape:
        """What the ops of the model depend on; all layers are alike."""
        config = self._config
        return OpsShape(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            activation=config.activation,
            norm_eps=config.norm_eps,
            stream_block=1 if self._stream is None else self._stream.size,
            inner_block=self._inner.size,
        )

    def adapter_fold(self) -> AdapterFold:
        """Brings adapters into the basis of the folded weights; once all layers are there."""
        return AdapterFold(
            self._config, self.rotation, self._stream, self._inner, self._heads,
            self._folded_gains,
        )  # fmt: skip

    def outer(self) -> tuple[Embedding, Head[Product]]:
        """The embedding, and the head that reads the stream."""
        config = self._config
        embed = self._table("embed")
        tied = config.tie_embeddings or "head.weight" not in self._source
        rows = self._store.rows("head", lambda: self._head(embed if tied else self._table("head")))
        bias = self._assembler.bias("head", config.vocab_size)
        return embed, Head(self._product(rows), self._gain("norm"), bias, config.logit_soft_cap)

    def _product(self, rows: Int8Rows) -> Product:
        if self._library is None:
            return Int8Product(rows)
        return Weight(self._library, *rows)

    def _head(self, table: Embedding) -> Int8Rows:
        # In ops: a large vocabulary's head in float32 would be the largest thing in memory.
        pieces = torch.split(torch.arange(self._config.vocab_size), HEAD_PIECE)
        parts = [quantize_rows(self._reads(table(piece), "norm")) for piece in pieces]
        quantized, scales = zip(*parts, strict=True)
        return Int8Rows(torch.cat(quantized), torch.cat(scales))

    def _table(self, name: str) -> Embedding:
        """Rows of a [vocab_size, hidden_size] matrix, from the file's blocks where it has such."""
        stored = self._source.lookup(f"{name}.weight")
        if stored is not None:
            return stored
        config = self._config
        return TableEmbedding(self._assembler.matrix(name, config.vocab_size, config.hidden_size))

    def layer(self, index: int) -> LayerWeights[Product]:
        """Layer `index`, folded, rotated and packed."""
        take, prefix = self._assembler, f"layers.{index}"
        o_bias, down_bias = self._write_biases(prefix)
        return LayerWeights(
            qkv=self._qkv(prefix),
            o=self._o(prefix),
            gate_up=self._gate_up(prefix),
            down=self._down(prefix),
            attn_gain=self._gain(f"{prefix}.attn_norm"),
            qkv_bias=self._qkv_bias(prefix),
            qk_gain=take.qk_gain(prefix),
            o_bias=o_bias,
            attn_post_gain=self._post_gain(f"{prefix}.attn_post_norm"),
            mlp_gain=self._gain(f"{prefix}.mlp_norm"),
            gate_up_bias=take.gate_up_bias(prefix),
            down_bias=down_bias,
            mlp_post_gain=self._post_gain(f"{prefix}.mlp_post_norm"),
        )

    def _gain(self, name: str) -> torch.Tensor | None:
        """Of a norm of the stream; it is in the weight behind it where the stream is rotated."""
        gain = self._assembler.gain(name, self._config.hidden_size)
        if self.rotation is None:
            return gain
        self._folded_gains[name] = gain
        return None

    def _post_gain(self, name: str) -> torch.Tensor | None:
        config = self._config
        return self._assembler.gain(name, config.hidden_size) if config.post_norms else None

    def _qkv(self, prefix: str) -> Product:
        fine, norm = self._value_rows, f"{prefix}.attn_norm"
        values = slice(*fine)

        def fold() -> Int8Rows:
            weight = self._assembler.qkv(prefix)
            weight[values] = self._heads(weight[values].t().contiguous()).t()
            return quantize_rows(self._reads(weight, norm), fine)

        return self._product(self._store.rows(f"{prefix}.qkv", fold))

    def _qkv_bias(self, prefix: str) -> torch.Tensor | None:
        bias, values = self._assembler.qkv_bias(prefix), slice(*self._value_rows)
        if bias is not None:
            bias[values] = self._heads(bias[None, values])[0]
        return bias

    def _o(self, prefix: str) -> Product:
        config, name = self._config, f"{prefix}.o"
        width = config.num_heads * config.head_dim

        def fold() -> Int8Rows:
            weight = self._assembler.matrix(name, config.hidden_size, width)
            return quantize_rows(self._writes(self._heads(weight)))

        return self._product(self._store.rows(name, fold))

    def _gate_up(self, prefix: str) -> Product:
        norm = f"{prefix}.mlp_norm"

        def fold() -> Int8Rows:
            return quantize_rows(self._reads(self._assembler.gate_up(prefix), norm))

        return self._product(self._store.rows(f"{prefix}.gate_up", fold))

    def _down(self, prefix: str) -> Product:
        config, name = self._config, f"{prefix}.down"

        def fold() -> Int8Rows:
            weight = self._assembler.matrix(name, config.hidden_size, config.intermediate_size)
            return quantize_rows(self._writes(self._inner(weight)))

        return self._product(self._store.rows(name, fold))

    def _reads(self, weight: torch.Tensor, norm: str) -> torch.Tensor:
        """A weight that reads the stream through a norm."""
        if self._stream is not None:
            return self._stream(weight)
        assert self.rotation is not None
        return self.rotation.columns(weight * self._assembler.gain(norm, self._config.hidden_size))

    def _writes(self, weight: torch.Tensor) -> torch.Tensor:
        """A weight that adds to the stream."""
        return weight if self.rotation is None else self.rotation.rows(weight)

    def _write_biases(self, prefix: str) -> Biases:
        """Of what adds to the stream: both are there or none, as one op serves both."""
        hidden = self._config.hidden_size
        found = [self._assembler.bias(f"{prefix}.{name}", hidden) for name in ("o", "down")]
        if all(bias is None for bias in found):
            return None, None
        o, down = (torch.zeros(hidden) if bias is None else bias for bias in found)
        if self.rotation is None:
            return o, down
        return self.rotation.columns(o[None])[0], self.rotation.columns(down[None])[0]
