"""The lean decoder against transformers' eager attention, every family, tiny random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from radixlang.kernels.native.library import Library
from radixlang.runtime.models.assemble import build_decoder
from radixlang.runtime.models.config import from_transformers
from radixlang.runtime.models.weights import StateDictWeights
from radixlang.runtime.process.native_library import native_library

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
YARN_MSCALE = YARN | {"mscale": 1.0, "mscale_all_dim": 0.7, "truncate": False}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(6)],
    "long_factor": [2.0 + i for i in range(6)],
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-biases-tied": (
        "LlamaConfig",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 16},
    ),
    "llama3-rope": (
        "LlamaConfig",
        {"head_dim": 16, "rope_parameters": LLAMA3 | {"rope_theta": 500.0}},
    ),
    "llama-linear-rope": (
        "LlamaConfig",
        {
            "head_dim": 16,
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        },
    ),
    "mistral-window": ("MistralConfig", {"sliding_window": 7, "head_dim": 16}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-yarn": ("Qwen2Config", {"rope_parameters": YARN | {"rope_theta": 1e4}}),
    "qwen2-yarn-mscale": ("Qwen2Config", {"rope_parameters": YARN_MSCALE | {"rope_theta": 1e4}}),
    "qwen3-window": (
        "Qwen3Config",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    ),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "sliding_window": 6,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "phi3-partial-rotary": (
        "Phi3Config",
        {
            "pad_token_id": 0,
            "rope_parameters": {
                "rope_type": "default",
                "partial_rotary_factor": 0.5,
                "rope_theta": 1e4,
            },
        },
    ),
    "phi3-longrope": (
        "Phi3Config",
        {
            "pad_token_id": 0,
            "original_max_position_embeddings": 64,
            "rope_parameters": LONGROPE
            | {"rope_theta": 1e4, "original_max_position_embeddings": 64},
        },
    ),
}


@pytest.fixture(scope="module")
def random_model(make_random_model: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a model of a kind with these options beside the SHAPE of this file."""
    return lambda kind, options: make_random_model(kind, SHAPE | options, seed=7)


@pytest.fixture(scope="module", params=["plain", "native"])
def library(request: pytest.FixtureRequest) -> Library | None:
    """None for plain torch, and the native library."""
    if request.param == "plain":
        return None
    found = native_library()
    if found is None:
        pytest.skip("there is no C++ compiler, or RADIXLANG_NATIVE is empty")
    return found


@pytest.mark.parametrize("case", CONFIGS)
def test_logits_equal_transformers(
    random_model: Callable[..., Any],
    case: str,
    forest: Callable[..., Any],
    library: Library | None,
) -> None:
    theirs = random_model(*CONFIGS[case])
    config = from_transformers(theirs.config, name=case, dtype="float32")
    source = StateDictWeights(theirs.state_dict(), case, post_norms=config.post_norms)
    ours = build_decoder(
        config, source, dtype=torch.float32, device=torch.device("cpu"), library=library
    )
    ids = torch.randint(0, 97, (3, 31))
    ids[:, :20] = ids[0, :20]
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits
    found = forest(config).shared_prefix_logits(ours, ids, 20)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


def test_longrope_beyond_the_trained_context_uses_the_long_factors(
    random_model: Callable[..., Any],
    forest: Callable[..., Any],
) -> None:
    kind, options = CONFIGS["phi3-longrope"]
    theirs = random_model(kind, options)
    short = from_transformers(theirs.config, name="phi3", dtype="float32")
    config = from_transformers(theirs.config, name="phi3", dtype="float32", context_length=100)
    assert (short.context_length, config.context_length) == (64, 100)
    source = StateDictWeights(theirs.state_dict(), "phi3", post_norms=False)
    ours = build_decoder(config, source, dtype=torch.float32, device=torch.device("cpu"))
    ids = torch.randint(0, 97, (2, 80))
    ids[:, :70] = ids[0, :70]
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits
    found = forest(config).shared_prefix_logits(ours, ids, 70)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


def test_bfloat16_stays_close_to_float32(
    random_model: Callable[..., Any], forest: Callable[..., Any], library: Library | None
) -> None:
    theirs = random_model("Gemma3TextConfig", CONFIGS["gemma3"][1])
    source = StateDictWeights(theirs.state_dict(), "gemma3", post_norms=True)
    ids = torch.randint(0, 97, (2, 20))
    ids[:, :10] = ids[0, :10]
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        config = from_transformers(theirs.config, name="gemma3", dtype=name)
        ours = build_decoder(
            config, source, dtype=dtype, device=torch.device("cpu"), library=library
        )
        found[name] = forest(config).shared_prefix_logits(ours, ids, 10)
    spread = found["float32"].std()
    assert (found["bfloat16"] - found["float32"]).abs().mean() < 0.05 * spread


def test_counts_weights_once_where_the_head_is_tied(
    random_model: Callable[..., Any], library: Library | None
) -> None:
    shape = {"tie_word_embeddings": True, "vocab_size": 96}  # whole blocks of the native weights
    theirs = random_model("LlamaConfig", shape)
    config = from_transformers(theirs.config, name="llama", dtype="float32")
    source = StateDictWeights(theirs.state_dict(), "llama", post_norms=False)
    ours = build_decoder(
        config, source, dtype=torch.float32, device=torch.device("cpu"), library=library
    )
    matrices = sum(p.nbytes for p in theirs.parameters() if p.ndim == 2)
    assert ours.num_weight_bytes == pytest.approx(matrices, rel=0.03)
    assert config.kv_bytes_per_token == 2 * 4 * 2 * 12 * 4
