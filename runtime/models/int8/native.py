"""The 8-bit decoder's layers and head by the native CPU library, each in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from radixlang.kernels.layer_kv import KVLayers
from radixlang.kernels.native import decoder as native
from radixlang.kernels.native.library import Library
from radixlang.kernels.native.step import NativePlans, NativePools
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.int8.ops import OpsShape
from radixlang.runtime.models.int8.rotation import ResidualRotation
from radixlang.runtime.models.rotary import inverse_frequencies

HEAD_DIM_STEP = 8  # the library's heads are multiples of it


class NativeLayers:
    """Layers and head of one model, ready to be called.

    Args:
        shape: of the model, as the plain operations have it.
        layers: `Int8Layer`s whose products are native weights.
        head: an `Int8Head` of the same.
        rotation: of embedded tokens, None where the stream is what was embedded.
    """

    def __init__(
        self,
        library: Library,
        config: ModelConfig,
        shape: OpsShape,
        layers: Sequence[Any],
        head: Any,
        rotation: ResidualRotation | None,
    ) -> None:
        self._num_layers = config.num_layers
        self._plans, self._pools = NativePlans(library), NativePools()
        self._decoder = native.NativeDecoder(
            library,
            _shape(shape),
            [_layer(config, index, layer) for index, layer in enumerate(layers)],
            [native.Rope(*inverse_frequencies(rope)) for rope in config.ropes],
            native.Head(head.product, head.gain, head.bias, config.logit_soft_cap),
            options=AttentionOptions(config.attention_scale, soft_cap=config.attention_soft_cap),
            after_embed=None if rotation is None else rotation.parts,
        )

    def forward(self, embedded: Tensor, plan: AttentionPlan, kv: KVLayers) -> Tensor:
        """Embedded tokens [num_tokens, hidden_size], which it overwrites, to the stream."""
        stream = embedded.float().contiguous()
        own, pools = self._plans.of(plan), self._pools.of(kv, self._num_layers)
        self._decoder.step(stream, own, pools)
        return stream

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        return self._decoder.logits(hidden)


def suits(config: ModelConfig) -> bool:
    """Whether the library computes such a model."""
    return config.head_dim % HEAD_DIM_STEP == 0


def _shape(shape: OpsShape) -> native.DecoderShape:
    return native.DecoderShape(
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        activation=native.ACTIVATIONS.index(shape.activation),
        stream_block=shape.stream_block,
        inner_block=shape.inner_block,
        norm_eps=shape.norm_eps,
    )


def _layer(config: ModelConfig, index: int, layer: Any) -> native.Layer:
    parts = {name: getattr(layer, name) for name in type(layer).__slots__}
    return native.Layer(**parts, rope=config.layer_rope[index], window=config.windows[index])
