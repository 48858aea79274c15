"""One decoder for the common families, driven by `ModelConfig`.

Tokens of all branches are one flat batch: [num_tokens, hidden_size]. Projections that read the
same input are one matrix (query-key-value, gate-up), attention reads and writes the cache through
the given plan, and logits are computed only for the rows that need them: `forward` stops before the
final norm, and `logits` takes rows of its result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F

from radixlang.kernels.attention import StepPlan, attend
from radixlang.kernels.cpu import elementwise
from radixlang.kernels.layer_kv import KVLayers, LayerKV
from radixlang.kernels.native.decoder import DenseWeight
from radixlang.kernels.native.grouped import GroupedWeight
from radixlang.kernels.native.library import Library
from radixlang.kernels.native.low_rank import LowRankPair
from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.models.activations import ACTIVATIONS
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.layers.linear import (
    DenseLinear,
    Linear,
    NativeLinear,
    RmsNorm,
    RowByRow,
    TransposedLinear,
)
from radixlang.runtime.models.layers.low_rank import AdapterBatch, BoundAdapter, bind
from radixlang.runtime.models.layers.native import NativeLayers, native_backend
from radixlang.runtime.models.layers.rotary import Rotary, rotate

Project = Callable[[str, Linear, torch.Tensor], torch.Tensor]  # of a part's name, weight, input


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer.

    `qk_gain` is [num_heads + num_kv_heads, head_dim]: the gains of the query and key norms.
    """

    attn_norm: RmsNorm
    qkv: Linear
    o: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    down: Linear
    qk_gain: torch.Tensor | None = None
    attn_post_norm: RmsNorm | None = None
    mlp_post_norm: RmsNorm | None = None


class Embedding(Protocol):
    """Token ids [n] to their rows [n, hidden_size]."""

    num_bytes: int

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor: ...


class TableEmbedding:
    """Rows of a table [vocab_size, hidden_size] in memory."""

    __slots__ = ("num_bytes", "weight")

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        self.num_bytes = weight.nbytes

    @property
    def rows(self) -> torch.Tensor:
        """The table."""
        return self.weight

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(input_ids, self.weight)


class PackedEmbedding:
    """Rows of a native weight [vocab_size, hidden_size], which is also the model's head."""

    __slots__ = ("num_bytes", "weight")

    def __init__(self, weight: DenseWeight) -> None:
        self.weight = weight
        self.num_bytes = weight.num_bytes

    @property
    def rows(self) -> torch.Tensor:
        """The table, a copy."""
        return self.weight.unpacked()

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.weight.rows(input_ids)


class GroupedEmbedding:
    """Rows of a native weight in a file's own blocks [vocab_size, hidden_size], also the head."""

    __slots__ = ("num_bytes", "weight")

    def __init__(self, weight: GroupedWeight) -> None:
        self.weight = weight
        self.num_bytes = weight.num_bytes

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.weight.rows(input_ids)


class Decoder:
    """A causal model of one of the lean families; see the module's docstring.

    Args:
        embed: token ids to rows of hidden_size.
        device: where the weights are.
        norm: the final norm.
        head: hidden_size to vocab_size.
        native: the same layers and head by the native library, where it is there.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[DecoderLayer],
        embed: Embedding,
        norm: RmsNorm,
        head: Linear,
        *,
        device: torch.device,
        native: NativeLayers | None = None,
    ) -> None:
        self.device = device
        self.config = config
        self._native = native
        self._layers = tuple(layers)
        self._embed = embed
        self._norm = norm
        self._head = head
        self._options = config.attention_options()
        self._rotary = [Rotary(rope, config.head_dim, device) for rope in config.ropes]
        self._head_norm = RmsNorm(config.head_dim, config.norm_eps)
        activation = ACTIVATIONS[config.activation]
        self._activation = activation.exact if device.type == "cpu" else activation.fused

    @property
    def batch_invariant(self) -> bool:
        """See `CausalModel`."""
        return self._native is not None or isinstance(self._head, RowByRow)

    @property
    def library(self) -> Library | None:
        """What attends, where the layers are native."""
        return None if self._native is None else self._native.library

    def with_rows_apart(self) -> Decoder:
        """The same model with products row by row, which makes it batch-invariant on the CPU where
        the layers are not native."""
        if self.batch_invariant or self.device.type != "cpu":
            return self
        twin = copy.copy(self)
        twin._layers = tuple(
            replace(layer, qkv=RowByRow(layer.qkv), o=RowByRow(layer.o),
                    gate_up=RowByRow(layer.gate_up), down=RowByRow(layer.down))
            for layer in self._layers
        )  # fmt: skip
        twin._head = RowByRow(self._head)
        return twin

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of all weights in memory; a tied head counts once."""
        linears = [part for layer in self._layers
                   for part in (layer.qkv, layer.o, layer.gate_up, layer.down)]  # fmt: skip
        table, head = (getattr(part, "weight", None) for part in (self._embed, self._head))
        tied = table is not None and table is head
        total = sum(linear.num_bytes for linear in linears)
        return total + self._embed.num_bytes + (0 if tied else self._head.num_bytes)

    def weights(self) -> list[torch.Tensor]:
        """Every weight in a fixed order, however it is laid out: linear ones as [out, in] views,
        or copies of what the native library has packed.

        Raises:
            ValueError: a linear layer holds something else than its checkpoint's values.
        """
        found: list[torch.Tensor | None] = []
        for layer in self._layers:
            for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
                found += _values(linear)
            norms = (layer.attn_norm, layer.mlp_norm, layer.attn_post_norm, layer.mlp_post_norm)
            found += [norm.gain for norm in norms if norm is not None]
            found.append(layer.qk_gain)
        table = self._embed
        if isinstance(table, (TableEmbedding, PackedEmbedding)):
            found.append(table.rows)
        found += [self._norm.gain, *_values(self._head)]
        return [tensor for tensor in found if tensor is not None]

    def bind_adapter(self, adapter: LoraAdapter) -> BoundAdapter:
        """See `AdaptableModel`."""

        def fold(layer: int, part: str, pair: LowRankPair) -> LowRankPair:
            return pair._replace(a=pair.a.to(self.device), b=pair.b.to(self.device))

        return bind(adapter, self.config, fold)

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        plan: StepPlan,
        kv: KVLayers,
        adapters: AdapterBatch | None = None,
    ) -> torch.Tensor:
        """Run the layers over a flat batch and write its keys and values through the plan.

        Args:
            input_ids: token ids [num_tokens], in the plan's branch order.
            positions: [num_tokens], the plan's positions.
            plan: AttentionPlan of this step.
            kv: kv[i] is the LayerKV of layer i.
            adapters: what is added to products of some rows.

        Returns:
            Residual stream [num_tokens, hidden_size], not yet normalised: see `logits`.
        """
        config = self.config
        hidden = scaled_rows(self._embed, input_ids, config.embed_scale)
        backend = native_backend(plan)
        if self._native is not None and backend is not None:
            return self._native.forward(hidden, backend, kv, adapters)
        rotations = [rotary.at(positions) for rotary in self._rotary]
        for index, layer in enumerate(self._layers):
            rotation = rotations[config.layer_rope[index]]
            project = _plain if adapters is None else partial(_adapted, adapters, index)
            hidden = hidden + self._attention(
                index, layer, hidden, rotation, plan, kv[index], project
            )
            hidden = hidden + self._mlp(layer, hidden, project)
        return hidden

    @torch.no_grad()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab_size] in float32 of the given rows of `forward`'s result."""
        if self._native is not None:
            return self._native.logits(hidden)
        return soft_capped(self._head(self._norm(hidden)).float(), self.config.logit_soft_cap)

    def _attention(
        self,
        index: int,
        layer: DecoderLayer,
        hidden: torch.Tensor,
        rotation: torch.Tensor,
        plan: StepPlan,
        layer_kv: LayerKV,
        project: Project,
    ) -> torch.Tensor:
        config = self.config
        num_rotated = config.num_heads + config.num_kv_heads
        qkv = project("qkv", layer.qkv, layer.attn_norm(hidden))
        qkv = qkv.view(-1, num_rotated + config.num_kv_heads, config.head_dim)
        qk, v = qkv[:, :num_rotated], qkv[:, num_rotated:]
        if layer.qk_gain is not None:
            qk = self._head_norm(qk) * layer.qk_gain
        if not plan.rotates:
            qk = rotate(qk, rotation)
        out = attend(
            qk[:, : config.num_heads],
            qk[:, config.num_heads :],
            v,
            layer_kv,
            plan,
            self._options[index],
            rotations=rotation.squeeze(1) if plan.rotates else None,
        )
        out = project("o", layer.o, out.reshape(hidden.shape[0], -1))
        return out if layer.attn_post_norm is None else layer.attn_post_norm(out)

    def _mlp(self, layer: DecoderLayer, hidden: torch.Tensor, project: Project) -> torch.Tensor:
        gate_up = project("gate_up", layer.gate_up, layer.mlp_norm(hidden))
        gate, up = gate_up.chunk(2, dim=-1)
        out = project("down", layer.down, self._activation(gate).mul_(up))
        return out if layer.mlp_post_norm is None else layer.mlp_post_norm(out)


def _values(linear: Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of a linear layer in a checkpoint's own values."""
    if not isinstance(linear, (DenseLinear, TransposedLinear, NativeLinear)):
        raise ValueError(f"the values of a {type(linear).__name__} cannot be replaced in place")
    return linear.rows, linear.bias


def _plain(part: str, linear: Linear, x: torch.Tensor) -> torch.Tensor:
    return linear(x)


def _adapted(
    adapters: AdapterBatch, index: int, part: str, linear: Linear, x: torch.Tensor
) -> torch.Tensor:
    return adapters.add(index, part, x, linear(x))


def scaled_rows(embed: Embedding, input_ids: torch.Tensor, scale: float) -> torch.Tensor:
    """Embedded tokens times a scale, which is rounded to their dtype first."""
    rows = embed(input_ids)
    return rows if scale == 1.0 else rows * torch.tensor(scale, dtype=rows.dtype)


def soft_capped(logits: torch.Tensor, cap: float | None) -> torch.Tensor:
    """cap * tanh(logits / cap); the logits themselves without a cap."""
    if cap is None:
        return logits
    tanh = elementwise.tanh if logits.device.type == "cpu" else torch.tanh
    return tanh(logits / cap) * cap
