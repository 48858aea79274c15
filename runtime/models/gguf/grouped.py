"""Builds a decoder that multiplies with a GGUF file's own blocks; nothing is folded or rotated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from radixlang.kernels.native.grouped import BLOCKS, GroupedWeight, StoredRows
from radixlang.kernels.native.library import Library
from radixlang.runtime.models.assemble import Assembler, in_threads, native_layers
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.decoder import (
    Decoder,
    DecoderLayer,
    Embedding,
    GroupedEmbedding,
    TableEmbedding,
)
from radixlang.runtime.models.gguf.laid_out import LaidOutStore
from radixlang.runtime.models.gguf.weights import GgufWeights
from radixlang.runtime.models.layers.linear import GroupedLinear
from radixlang.runtime.models.layers.native import suits
from radixlang.runtime.models.layers.rotary import interleave_rows

GROUP = 32  # weights of a scale: what every width must be a multiple of
Q8_0 = 8


def can_group(config: ModelConfig, source: GgufWeights) -> bool:
    """Whether the native library can serve a model from the file's own blocks."""
    widths = (
        config.hidden_size,
        config.intermediate_size,
        config.num_heads * config.head_dim,
    )
    is_whole = all(width % GROUP == 0 for width in widths)
    return is_whole and suits(config) and source.can_serve_blocks


def build_grouped_decoder(
    config: ModelConfig, source: GgufWeights, library: Library, store: LaidOutStore
) -> Decoder:
    """Assemble a decoder on the CPU whose weights are the file's own bits, laid out for products.

    Matrices in floats are rounded to Q8_0. Pages of the file are let go as they are read. What was
    laid out is kept in the store and mapped from there.

    Raises:
        ModelFormatError: a tensor is missing or has another shape than the configuration says.
    """
    take = _Grouper(config, source, store)
    what = "laying out layers" if store.is_empty else "mapping layers"
    (embed, head), layers = in_threads(take.outer, take.layer, config.num_layers, what)
    norm = take.assembler.norm("norm")
    native = native_layers(library, config, layers, head, norm)
    device = torch.device("cpu")
    return Decoder(config, layers, embed, norm, head, device=device, native=native)


class _Grouper:
    """Takes one model's matrices block by block."""

    def __init__(self, config: ModelConfig, source: GgufWeights, store: LaidOutStore) -> None:
        self._config = config
        self._source = source
        self._store = store
        self.assembler = Assembler(config, source, torch.float32, torch.device("cpu"))

    def outer(self) -> tuple[Embedding, GroupedLinear]:
        """The embedding, and the head; where they are one, its rows are read from the weight."""
        vocab, hidden = self._config.vocab_size, self._config.hidden_size
        bias = self.assembler.bias("head", vocab)
        tied = self._config.tie_embeddings or "head.weight" not in self._source
        weight = self._weight(["embed" if tied else "head"], [vocab], hidden)
        head = GroupedLinear(weight, bias)
        if tied:
            return GroupedEmbedding(weight), head
        table = self._source.lookup("embed.weight")
        if table is not None:
            return table, head
        return TableEmbedding(self.assembler.matrix("embed", vocab, hidden)), head

    def layer(self, index: int) -> DecoderLayer:
        """Layer `index`, laid out."""
        take, config, prefix = self.assembler, self._config, f"layers.{index}"
        hidden, inner = config.hidden_size, config.intermediate_size
        attended = config.num_heads * config.head_dim
        return DecoderLayer(
            attn_norm=take.norm(f"{prefix}.attn_norm"),
            qkv=self._qkv(prefix),
            o=self._linear(f"{prefix}.o", hidden, attended),
            mlp_norm=take.norm(f"{prefix}.mlp_norm"),
            gate_up=self._gate_up(prefix, inner),
            down=self._linear(f"{prefix}.down", hidden, inner),
            qk_gain=take.qk_gain(prefix),
            attn_post_norm=take.post_norm(f"{prefix}.attn_post_norm"),
            mlp_post_norm=take.post_norm(f"{prefix}.mlp_post_norm"),
        )

    def _linear(self, name: str, rows: int, columns: int) -> GroupedLinear:
        return GroupedLinear(self._weight([name], [rows], columns), self.assembler.bias(name, rows))

    def _qkv(self, prefix: str) -> GroupedLinear:
        config = self._config
        counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        sizes = [count * config.head_dim for count in counts]
        orders = self._orders(sizes)
        names = [f"{prefix}.{part}" for part in "qkv"]
        if f"{prefix}.qkv.weight" in self._source:
            starts = np.cumsum([0, *sizes])
            order = np.concatenate([at + each for at, each in zip(starts, orders, strict=False)])
            names, sizes, orders = [f"{prefix}.qkv"], [sum(sizes)], [order]
        weight = self._weight(names, sizes, config.hidden_size, orders)
        return GroupedLinear(weight, self.assembler.qkv_bias(prefix))

    def _orders(self, sizes: Sequence[int]) -> list[NDArray[np.int64]]:
        """The stored row of each row of q, k and v: pairs that are rotated lie side by side."""
        config, orders = self._config, [torch.arange(size) for size in sizes]
        if not self._source.pairs_side_by_side:
            rotary_dim = config.ropes[0].rotary_dim
            for at, heads in enumerate((config.num_heads, config.num_kv_heads)):
                orders[at] = interleave_rows(orders[at], heads, rotary_dim)
        return [order.numpy() for order in orders]

    def _gate_up(self, prefix: str, inner: int) -> GroupedLinear:
        names, sizes = [f"{prefix}.gate", f"{prefix}.up"], [inner, inner]
        if f"{prefix}.gate_up.weight" in self._source:
            names, sizes = [f"{prefix}.gate_up"], [2 * inner]
        weight = self._weight(names, sizes, self._config.hidden_size)
        return GroupedLinear(weight, self.assembler.gate_up_bias(prefix))

    def _weight(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        columns: int,
        orders: Sequence[NDArray[np.int64] | None] | None = None,
    ) -> GroupedWeight:
        """Matrices [size, columns] one below the other, their rows in these orders."""
        orders = orders or [None] * len(names)
        wanted = list(zip(names, sizes, orders, strict=True))

        def read() -> list[StoredRows]:
            return [self._part(name, rows, columns, order) for name, rows, order in wanted]

        found = [self._stored(name, rows, columns) for name, rows, _ in wanted]
        kinds = [Q8_0 if part is None else part.kind for part in found]
        shapes = [(kind, rows, columns) for kind, rows in zip(kinds, sizes, strict=True)]
        weight = self._store.weight("+".join(names), shapes, read)
        for name in names:
            self._source.release(f"{name}.weight")
        return weight

    def _stored(self, name: str, rows: int, columns: int) -> StoredRows | None:
        """A matrix of that shape in the file's own blocks; None where it is to be rounded."""
        found = self._source.stored(f"{name}.weight")
        is_so = found is not None and (found.num_rows, found.width) == (rows, columns)
        return found if is_so else None

    def _part(
        self, name: str, rows: int, columns: int, order: NDArray[np.int64] | None
    ) -> StoredRows:
        found = self._stored(name, rows, columns)
        if found is None:
            return StoredRows(Q8_0, rounded(self.assembler.matrix(name, rows, columns)), order)
        return StoredRows(found.kind, found.blocks, order)


def rounded(matrix: torch.Tensor) -> NDArray[np.uint8]:
    """Rows [rows, columns] as Q8_0 blocks [rows, bytes a row]."""
    size, num_bytes = BLOCKS[Q8_0]
    groups = matrix.float().reshape(matrix.shape[0], -1, size)
    scale = (groups.abs().amax(-1, keepdim=True) / 127).half()
    inverse = torch.where(scale > 0, 1 / scale.float(), 0.0)
    values = torch.round(groups * inverse).clamp_(-127, 127).to(torch.int8)
    blocks = torch.cat((scale.view(torch.uint8), values.view(torch.uint8)), dim=-1)
    return blocks.reshape(matrix.shape[0], -1, num_bytes).flatten(1).numpy()
