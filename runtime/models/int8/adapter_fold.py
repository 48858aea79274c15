"""Adapters in the basis of 8-bit weights: their thin matrices take what the weights have taken.

The stream is rotated, gains are folded into what reads it, values and inner activations are
Hadamard transformed. An adapter reads the same quantized values as the product that it adds to,
and adds before a token's scale is applied.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from radixlang.kernels.native.low_rank import LowRankPair
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.int8.linear import LARGEST
from radixlang.runtime.models.int8.rotation import BlockHadamard, ResidualRotation

_NORMS = {"qkv": "attn_norm", "gate_up": "mlp_norm"}  # before what reads the stream


class AdapterFold:
    """Brings the pairs of an adapter into the basis of one model.

    Args:
        rotation: of the stream; None where `stream` transforms what is read instead.
        gains: by layer and norm, those that are folded into weights; none without a rotation.
    """

    def __init__(
        self,
        config: ModelConfig,
        rotation: ResidualRotation | None,
        stream: BlockHadamard | None,
        inner: BlockHadamard,
        heads: BlockHadamard,
        gains: Mapping[str, Tensor],
    ) -> None:
        self._rotation, self._stream = rotation, stream
        self._inner, self._heads = inner, heads
        self._gains = gains
        self._first_value = (config.num_heads + config.num_kv_heads) * config.head_dim

    def __call__(self, layer: int, part: str, pair: LowRankPair) -> LowRankPair:
        """The pair in the model's basis; 1 / 127 of quantized values is in it."""
        a = self._reads(layer, part, pair.a) / LARGEST
        return LowRankPair(a.contiguous(), self._writes(part, pair).contiguous(), pair.column)

    def _reads(self, layer: int, part: str, a: Tensor) -> Tensor:
        if part == "o":
            return self._heads(a)
        if part == "down":
            return self._inner(a)
        if self._stream is not None:
            return self._stream(a)
        assert self._rotation is not None
        return self._rotation.columns(a * self._gains[f"layers.{layer}.{_NORMS[part]}"])

    def _writes(self, part: str, pair: LowRankPair) -> Tensor:
        b = pair.b
        if part in ("o", "down"):
            return b if self._rotation is None else self._rotation.columns(b)
        values = max(0, self._first_value - pair.column)
        if part == "qkv" and values < b.shape[1]:
            b = b.clone()
            b[:, values:] = self._heads(b[:, values:].contiguous())
        return b
