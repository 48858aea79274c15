"""The decoder in 8 bits: products of int8 values, and what is between them.

The same arithmetic as `Decoder`'s over flat batches, cut where the products are: what comes out
of one is scaled, used and quantized for the next in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from radixlang.kernels.attention import StepPlan, attend
from radixlang.kernels.layer_kv import KVLayers, LayerKV
from radixlang.kernels.native.decoder import Head, LayerWeights
from radixlang.kernels.native.library import Library
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.decoder import Embedding, scaled_rows, soft_capped
from radixlang.runtime.models.int8.adapter_fold import AdapterFold
from radixlang.runtime.models.int8.linear import Product
from radixlang.runtime.models.int8.ops import Int8Ops, Quantized
from radixlang.runtime.models.layers.low_rank import AdapterBatch, BoundAdapter, bind
from radixlang.runtime.models.layers.native import NativeLayers, native_backend
from radixlang.runtime.models.layers.rotary import Rotary

Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys and values: see `Int8Ops.heads`


class HasBytes(Protocol):
    """A part of a model that counts its weights."""

    @property
    def num_bytes(self) -> int: ...


class Int8Decoder:
    """A causal model of one of the lean families in 8 bits, on a CPU.

    Args:
        embed: token ids to rows of hidden_size.
        head: hidden_size to vocab_size.
        ops: all arithmetic but products and attention.
        adapter_fold: brings adapters into the basis of the weights.
        after_embed: what makes of embedded tokens the stream that the layers read.
        native: the same layers and head by the native library, where it is there; `ops` then
            serve plans of other backends.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[LayerWeights[Product]],
        embed: Embedding,
        head: Head[Product],
        ops: Int8Ops,
        *,
        adapter_fold: AdapterFold,
        after_embed: Callable[[Tensor], Tensor] | None = None,
        native: NativeLayers | None = None,
    ) -> None:
        self.device = torch.device("cpu")
        self.config = config
        self._layers = tuple(layers)
        # The norm behind a layer is the next layer's, or the head's.
        self._next_gains = (*(layer.attn_gain for layer in layers[1:]), head.gain)
        self._embed = embed
        self._head = head
        self._options = config.attention_options()
        self._ops = ops
        self._adapter_fold = adapter_fold
        self._after_embed = after_embed
        self._native = native
        self._rotary = [Rotary(rope, config.head_dim, self.device) for rope in config.ropes]

    @property
    def batch_invariant(self) -> bool:
        """True: see `CausalModel`."""
        return True

    @property
    def library(self) -> Library | None:
        """What attends, where the layers are native."""
        return None if self._native is None else self._native.library

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of all weights as held in memory."""
        products = [part for layer in self._layers
                    for part in (layer.qkv, layer.o, layer.gate_up, layer.down)]  # fmt: skip
        held: Iterable[HasBytes] = (*products, self._embed, self._head.weight)
        return sum(part.num_bytes for part in held)

    def bind_adapter(self, adapter: LoraAdapter) -> BoundAdapter:
        """See `AdaptableModel`."""
        return bind(adapter, self.config, self._adapter_fold)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        plan: StepPlan,
        kv: KVLayers,
        adapters: AdapterBatch | None = None,
    ) -> Tensor:
        """See `Decoder.forward`."""
        assert isinstance(plan, AttentionPlan)  # graphs are captured on a GPU
        backend = native_backend(plan)
        if self._native is not None and backend is not None:
            embedded = scaled_rows(self._embed, input_ids, self.config.embed_scale)
            return self._native.forward(embedded, backend, kv, adapters)
        ops, layers = self._ops, self._layers
        rotations = [torch.view_as_real(rotary.at(positions)) for rotary in self._rotary]
        stream = self._embedded(input_ids)
        quantized, scale = ops.read(stream, layers[0].attn_gain)
        for index, (layer, next_gain) in enumerate(zip(layers, self._next_gains, strict=True)):
            rotation = rotations[self.config.layer_rope[index]]
            product = partial(_multiplied, adapters, index)
            qkv = product("qkv", layer.qkv, quantized)
            heads = ops.heads(qkv, scale, rotation, layer.qkv_bias, layer.qk_gain)
            quantized, scale = self._attended(index, heads, kv[index], plan)
            stream, quantized, scale = ops.add_read(
                stream,
                product("o", layer.o, quantized),
                scale,
                layer.o_bias,
                layer.attn_post_gain,
                layer.mlp_gain,
            )
            quantized, scale = ops.activated(
                product("gate_up", layer.gate_up, quantized), scale, layer.gate_up_bias
            )
            stream, quantized, scale = ops.add_read(
                stream,
                product("down", layer.down, quantized),
                scale,
                layer.down_bias,
                layer.mlp_post_gain,
                next_gain,
            )
        return stream

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        if self._native is not None:
            return self._native.logits(hidden)
        quantized, scale = self._ops.read(hidden.contiguous(), self._head.gain)
        logits = self._head.weight(quantized).mul_(scale)
        if self._head.bias is not None:
            logits.add_(self._head.bias)
        return soft_capped(logits.float(), self._head.soft_cap)

    def _embedded(self, input_ids: Tensor) -> Tensor:
        stream = scaled_rows(self._embed, input_ids, self.config.embed_scale)
        return stream if self._after_embed is None else self._after_embed(stream)

    def _attended(
        self, index: int, heads: Heads, layer_kv: LayerKV, plan: AttentionPlan
    ) -> Quantized:
        """Attention's output, quantized."""
        q, k, v = heads
        return self._ops.attended(attend(q, k, v, layer_kv, plan, self._options[index]))


def _multiplied(
    adapters: AdapterBatch | None, layer: int, part: str, weight: Product, quantized: Tensor
) -> Tensor:
    """A product without its tokens' scales, with what adapters add to it."""
    out: Tensor = weight(quantized)
    return out if adapters is None else adapters.add(layer, part, quantized, out)
