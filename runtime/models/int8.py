"""A decoder in 8 bits: the stream rotated where it can be, every projection an `Int8Linear`."""

from __future__ import annotations

import torch

from radixlang.runtime.models.build import Assembler, in_threads
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.decoder import (
    Decoder,
    DecoderLayer,
    Embedding,
    Function,
    TableEmbedding,
)
from radixlang.runtime.models.linear import (
    Int8Linear,
    Int8Rows,
    Linear,
    RmsNorm,
    quantize_rows,
    warn_once_in_silence,
)
from radixlang.runtime.models.rotation import BlockHadamard, ResidualRotation
from radixlang.runtime.models.row_store import RowStore
from radixlang.runtime.models.weights import WeightSource

# Families whose models `benchmarks/quality.py` found within KL 0.01 and top-1 0.95 of float32.
MEASURED_FAMILIES = frozenset({"llama", "gemma3_text"})
STREAM_BLOCK = 128
HEAD_PIECE = 8192  # rows


def build_int8_decoder(
    config: ModelConfig, source: WeightSource, store: RowStore | None = None
) -> Decoder:
    """Assemble a decoder with 8-bit linear layers on the CPU.

    In exact arithmetic it computes what the checkpoint does. Families with norms after their
    sublayers (Gemma) keep their stream and gains: such a norm's gain does not commute with a
    rotation, and their gains tame the stream's large channels. There every projection's input is
    rotated in the loop, in blocks. What was folded and rounded goes into the store, and comes from
    there at the next start.

    Raises:
        ModelFormatError: a tensor is missing or has another shape than the configuration says.
    """
    warn_once_in_silence()
    folder = _Folder(config, source, store or RowStore(None))
    (embed, head), layers = in_threads(folder.outer, folder.layer, config.num_layers)
    return Decoder(
        config, layers, embed, None, head,
        device=torch.device("cpu"), after_embed=folder.after_embed,
    )  # fmt: skip


class _Folder:
    """Folds norms and rotations into one model's weights."""

    def __init__(self, config: ModelConfig, source: WeightSource, store: RowStore) -> None:
        self._config = config
        self._store = store
        self._source = source
        self._assembler = Assembler(config, source, torch.float32, torch.device("cpu"))
        hidden = config.hidden_size
        self._residual = None if config.post_norms else ResidualRotation(hidden)
        self._stream = BlockHadamard(hidden, STREAM_BLOCK) if config.post_norms else None
        self._inner = BlockHadamard(config.intermediate_size)
        self._heads = BlockHadamard(config.head_dim)  # attention commutes with it
        first = (config.num_heads + config.num_kv_heads) * config.head_dim
        # Values are held finer: the value of the first token, which every token attends to, is
        # nearly zero by cancellation, and an error in it is added to the whole text.
        self._value_rows = (first, first + config.num_kv_heads * config.head_dim)

    @property
    def after_embed(self) -> Function | None:
        """Embedded tokens are rotated when looked up: cheaper than rotating the whole table."""
        return None if self._residual is None else self._residual.columns

    def outer(self) -> tuple[Embedding, Linear]:
        """The embedding, and the head that reads the stream."""
        config = self._config
        embed = self._table("embed")
        tied = config.tie_embeddings or "head.weight" not in self._source
        rows = self._store.rows("head", lambda: self._head(embed if tied else self._table("head")))
        bias = self._assembler.bias("head", config.vocab_size)
        return embed, Int8Linear(rows, bias, norm=self._norm("norm"), turn=self._stream, wide=True)

    def _head(self, table: Embedding) -> Int8Rows:
        # In pieces: a large vocabulary's head in float32 would be the largest thing in memory.
        pieces = torch.split(torch.arange(self._config.vocab_size), HEAD_PIECE)
        parts = [quantize_rows(self._reads(table(piece), "norm")) for piece in pieces]
        levels, scales = zip(*parts, strict=True)
        return Int8Rows(torch.cat(levels), torch.cat(scales))

    def _table(self, name: str) -> Embedding:
        """Rows of a [vocab_size, hidden_size] matrix, from the file's blocks where it has such."""
        stored = self._source.lookup(f"{name}.weight")
        if stored is not None:
            return stored
        config = self._config
        return TableEmbedding(self._assembler.matrix(name, config.vocab_size, config.hidden_size))

    def layer(self, index: int) -> DecoderLayer:
        """Layer `index`, folded, rotated and packed."""
        take, prefix = self._assembler, f"layers.{index}"
        return DecoderLayer(
            attn_norm=None,
            qkv=self._qkv(prefix),
            o=self._o(prefix),
            mlp_norm=None,
            gate_up=self._gate_up(prefix),
            down=self._down(prefix),
            qk_gain=take.qk_gain(prefix),
            attn_post_norm=take.post_norm(f"{prefix}.attn_post_norm"),
            mlp_post_norm=take.post_norm(f"{prefix}.mlp_post_norm"),
        )

    def _norm(self, name: str) -> RmsNorm:
        """The norm before a projection; its gain is in the weight where the stream is rotated."""
        if self._residual is None:
            return self._assembler.norm(name)
        return RmsNorm(self._config.hidden_size, self._config.norm_eps)

    def _qkv(self, prefix: str) -> Int8Linear:
        fine, norm = self._value_rows, f"{prefix}.attn_norm"
        values = slice(*fine)

        def fold() -> Int8Rows:
            weight = self._assembler.qkv(prefix)
            weight[values] = self._heads(weight[values].t().contiguous()).t()
            return quantize_rows(self._reads(weight, norm), fine)

        bias = self._assembler.qkv_bias(prefix)
        if bias is not None:
            bias[values] = self._heads(bias[None, values])[0]
        rows = self._store.rows(f"{prefix}.qkv", fold)
        return Int8Linear(rows, bias, norm=self._norm(norm), turn=self._stream, fine_rows=fine)

    def _o(self, prefix: str) -> Int8Linear:
        config, name = self._config, f"{prefix}.o"
        width = config.num_heads * config.head_dim

        def fold() -> Int8Rows:
            weight = self._assembler.matrix(name, config.hidden_size, width)
            return quantize_rows(self._writes(self._heads(weight)))

        return Int8Linear(self._store.rows(name, fold), self._bias(name))

    def _gate_up(self, prefix: str) -> Int8Linear:
        norm = f"{prefix}.mlp_norm"

        def fold() -> Int8Rows:
            return quantize_rows(self._reads(self._assembler.gate_up(prefix), norm))

        rows = self._store.rows(f"{prefix}.gate_up", fold)
        bias = self._assembler.gate_up_bias(prefix)
        return Int8Linear(rows, bias, norm=self._norm(norm), turn=self._stream)

    def _down(self, prefix: str) -> Int8Linear:
        config, name = self._config, f"{prefix}.down"

        def fold() -> Int8Rows:
            weight = self._assembler.matrix(name, config.hidden_size, config.intermediate_size)
            return quantize_rows(self._writes(self._inner(weight)))

        return Int8Linear(self._store.rows(name, fold), self._bias(name), turn=self._inner)

    def _reads(self, weight: torch.Tensor, norm: str) -> torch.Tensor:
        """A weight that reads the stream through a norm."""
        if self._stream is not None:
            return self._stream(weight)
        assert self._residual is not None
        return self._residual.columns(weight * self._assembler.gain(norm, self._config.hidden_size))

    def _writes(self, weight: torch.Tensor) -> torch.Tensor:
        """A weight that adds to the stream."""
        return weight if self._residual is None else self._residual.rows(weight)

    def _bias(self, name: str) -> torch.Tensor | None:
        bias = self._assembler.bias(name, self._config.hidden_size)
        if bias is None or self._residual is None:
            return bias
        return self._residual.columns(bias[None])[0]
