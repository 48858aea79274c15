"""The interface of models for the engine, and the result of `load_model`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from radixlang.kernels.attention import StepPlan, plan_attention
from radixlang.kernels.layer_kv import KVLayers
from radixlang.kernels.native.library import Library
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.layers.low_rank import AdapterBatch, BoundAdapter
from radixlang.runtime.text.tokenizer import Tokenizer
from radixlang.sampling_params import SamplingKeywords


class CausalModel(Protocol):
    """A causal language model over flat batches; attention goes through the plan.

    `forward` maps input_ids [num_tokens] and positions [num_tokens] to the residual stream
    [num_tokens, hidden_size] and writes keys and values to kv[layer]; `logits` maps any rows of
    it to [n, vocab_size] in float32. It is `batch_invariant` if a row's results have the same bits
    alone and in any company, however its path is cut. `library`, where there is one, attends on
    the CPU.
    """

    config: ModelConfig

    @property
    def batch_invariant(self) -> bool: ...

    @property
    def library(self) -> Library | None: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def num_weight_bytes(self) -> int: ...

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, plan: StepPlan, kv: KVLayers
    ) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


@runtime_checkable
class HasWeights(Protocol):
    """A model whose weights can be overwritten."""

    def weights(self) -> list[torch.Tensor]:
        """All of them in a fixed order, linear ones as [out_features, in_features]."""
        ...


@torch.no_grad()
def overwrite_weights(model: CausalModel, others: CausalModel) -> None:
    """Copy the weights of another model of the same kind, on any device, into this one's memory.

    No address changes, so captured graphs stay valid, and no second set of weights is held on the
    device.

    Raises:
        ValueError: the two have other tensors; nothing was copied.
    """
    if not (isinstance(model, HasWeights) and isinstance(others, HasWeights)):
        raise ValueError(f"a {type(model).__name__} cannot take the weights of another model")
    into, come_from = model.weights(), others.weights()
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in (into, come_from)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"the weights of {others.config.name} have other shapes than those held")
    for target, source in zip(into, come_from, strict=True):
        target.copy_(source)


@runtime_checkable
class AdaptableModel(CausalModel, Protocol):
    """A model whose products adapters can add to."""

    def bind_adapter(self, adapter: LoraAdapter) -> BoundAdapter:
        """The adapter for this model's weights; raises an AdapterFormatError if it belongs to
        another model."""
        ...

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        plan: StepPlan,
        kv: KVLayers,
        adapters: AdapterBatch | None = None,
    ) -> torch.Tensor: ...


def plan_for(
    model: CausalModel,
    batch: TreeBatch,
    *,
    deterministic: bool = False,
    backend: str | None = None,
) -> AttentionPlan:
    """Plan attention over a batch for the heads and the device of a model; see plan_attention."""
    config = model.config
    return plan_attention(
        batch,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        deterministic=deterministic,
        device=model.device,
        backend=backend,
        library=model.library,
    )


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        generation_defaults: sampling values of the model's generation_config.json, such as
            temperature and top_p, under our parameter names.
        quantization: "file", "int8", or None for the checkpoint's own precision.
    """

    model: CausalModel
    tokenizer: Tokenizer
    config: ModelConfig
    generation_defaults: SamplingKeywords = field(default_factory=SamplingKeywords)
    quantization: str | None = None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every token that ends a generation."""
        return tuple(dict.fromkeys((*self.config.eos_token_ids, *self.tokenizer.eos_token_ids)))
