"""The lean decoder over Triton's path, eager and through static buffers, against its CPU path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from radixlang.kernels.attention import plan_attention
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.tools.forests import level_forest
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.forward.cuda_graphs import DecodeGraphs
from radixlang.runtime.models.assemble import build_decoder
from radixlang.runtime.models.config import ModelConfig, from_transformers
from radixlang.runtime.models.decoder import Decoder
from radixlang.runtime.models.weights import StateDictWeights

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
HALF_TURNED = {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 1e4}
KINDS = {
    "llama": ("LlamaConfig", {}),
    "phi3": ("Phi3Config", {"pad_token_id": 0, "head_dim": 8, "rope_parameters": HALF_TURNED}),
}


def decoder(case: str) -> Decoder:
    kind, options = KINDS[case]
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, kind)(**SHAPE | options)
    )
    config = from_transformers(theirs.config, name=case, dtype="float32")
    source = StateDictWeights(theirs.state_dict(), case, post_norms=False)
    model = build_decoder(config, source, dtype=torch.float32, device=torch.device("cpu"))
    assert isinstance(model, Decoder)
    return model


def plan_of(config: ModelConfig, batch: TreeBatch, backend: str) -> AttentionPlan:
    return plan_attention(
        batch, num_heads=config.num_heads, num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim, backend=backend,
    )  # fmt: skip


def capture(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    out = run()
    return lambda: out.copy_(run())


@pytest.mark.parametrize("case", KINDS)
def test_hidden_states_are_those_of_the_cpu(case: str) -> None:
    model, batch = decoder(case), level_forest((1, 3), (20, 4))
    config = model.config
    eager, static, on_cpu = (
        KVCache(32, config.num_layers, config.num_kv_heads, config.head_dim) for _ in range(3)
    )
    for layer in range(config.num_layers):
        for name in ("k", "v"):
            values = torch.randn(32, config.num_kv_heads, config.head_dim)
            for cache in (eager, static, on_cpu):
                getattr(cache[layer], name).copy_(values)
    triton, plain = (plan_of(config, batch, backend) for backend in ("triton", "cpu"))
    ids = torch.tensor([5, 9, 60])
    expected = model.forward(ids, plain.positions, plain, on_cpu)
    found = model.forward(ids, triton.positions, triton, eager)
    replayed = DecodeGraphs(model, static, capture).run(ids.numpy(), triton)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(replayed, expected, rtol=0, atol=2e-6)
    for layer in range(config.num_layers):
        torch.testing.assert_close(eager[layer].k, on_cpu[layer].k, rtol=0, atol=2e-6)
        torch.testing.assert_close(static[layer].v, on_cpu[layer].v, rtol=0, atol=2e-6)
