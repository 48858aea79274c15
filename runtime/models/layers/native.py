"""A decoder's layers and head by the native CPU library, each in one call."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from torch import Tensor

from radixlang.kernels.attention import StepPlan
from radixlang.kernels.layer_kv import KVLayers
from radixlang.kernels.native import decoder as native
from radixlang.kernels.native.attention import OPTIONS
from radixlang.kernels.native.backend import HEAD_DIM_STEP, NativeBackend
from radixlang.kernels.native.library import Library
from radixlang.kernels.native.low_rank import PLACES, NativeAdapters, NativeVariant
from radixlang.kernels.native.step import NativePools
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.runtime.models.activations import ACTIVATIONS
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.layers.low_rank import AdapterBatch, AdapterGroup, BoundAdapter
from radixlang.runtime.models.layers.rotary import inverse_frequencies

Use = tuple[float, frozenset[int] | None]  # scale, and the layers in which an adapter acts


class NativeLayers:
    """Layers and head of one model, ready to be called.

    Args:
        shape: of the model, as `shape_of` gives it.
        rotation: of embedded tokens, None where the stream is what was embedded.
    """

    def __init__(
        self,
        library: Library,
        config: ModelConfig,
        shape: native.DecoderShape,
        layers: Sequence[native.LayerWeights[native.AnyWeight]],
        head: native.Head[native.AnyWeight],
        rotation: native.Rotation | None = None,
    ) -> None:
        self.library = library
        self._num_layers = config.num_layers
        self._pools = NativePools()
        self._variants: WeakKeyDictionary[BoundAdapter, dict[Use, NativeVariant]] = (
            WeakKeyDictionary()
        )
        self._decoder = native.NativeDecoder(
            library,
            shape,
            layers,
            head,
            options=config.attention_options(),
            ropes=[native.Rope(*inverse_frequencies(rope)) for rope in config.ropes],
            layer_rope=config.layer_rope,
            after_embed=rotation,
        )

    def forward(
        self,
        embedded: Tensor,
        backend: NativeBackend,
        kv: KVLayers,
        adapters: AdapterBatch | None = None,
    ) -> Tensor:
        """Embedded tokens [num_tokens, hidden_size], which it overwrites, to the stream."""
        stream = embedded.float().contiguous()
        added = None if adapters is None else NativeAdapters(
            [(self._variant(group), group.rows) for group in adapters.groups]
        )  # fmt: skip
        self._decoder.step(stream, backend.plan, self._pools.of(kv, self._num_layers), added)
        return stream

    def _variant(self, group: AdapterGroup) -> NativeVariant:
        """The library's side of an adapter in one use, kept as long as the adapter is."""
        uses = self._variants.setdefault(group.adapter, {})
        key = (group.scale, group.layers)
        if key not in uses:
            places = [
                group.pairs(layer, place) for layer in range(self._num_layers) for place in PLACES
            ]
            uses[key] = NativeVariant(places, group.scale)
        return uses[key]

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        return self._decoder.logits(hidden)


def native_backend(plan: StepPlan) -> NativeBackend | None:
    """The plan's backend where the library attends; None for any other."""
    if isinstance(plan, AttentionPlan) and isinstance(plan.backend, NativeBackend):
        return plan.backend
    return None


def suits(config: ModelConfig) -> bool:
    """Whether the library computes such a model."""
    options = config.attention_options()
    return config.head_dim % HEAD_DIM_STEP == 0 and all(each.used <= OPTIONS for each in options)


def shape_of(
    config: ModelConfig, *, stream_block: int = 1, inner_block: int = 1, value_parts: int = 1
) -> native.DecoderShape:
    """A model's shape for the library; see DecoderShape for what is not in the configuration."""
    return native.DecoderShape(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        activation=ACTIVATIONS[config.activation].native,
        stream_block=stream_block,
        inner_block=inner_block,
        value_parts=value_parts,
        norm_eps=config.norm_eps,
    )
