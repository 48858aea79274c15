"""Architectures outside the lean list through transformers' classes and our attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from radixlang.errors import ModelFormatError
from radixlang.runtime.models import transformers_model
from radixlang.runtime.models.transformers_model import wrap

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
GROUPED = SHAPE | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-neox": ("GPTNeoXConfig", SHAPE),
    "stablelm": ("StableLmConfig", GROUPED),
    "olmo2": ("Olmo2Config", GROUPED),
    "cohere2-window": ("Cohere2Config", GROUPED | {"sliding_window": 6}),
    "granite-scaled": (
        "GraniteConfig",
        GROUPED | {"logits_scaling": 3.0, "embedding_multiplier": 2.0},
    ),
    "gpt2": ("GPT2Config", GPT2),
    "gpt-oss-sinks": (
        "GptOssConfig",
        GROUPED
        | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
    ),
}


def random_model(kind: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(3)
    config = getattr(transformers, kind)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return model.eval()


@pytest.mark.parametrize("case", CONFIGS)
def test_logits_equal_transformers(case: str, forest: Callable[..., Any]) -> None:
    theirs = random_model(*CONFIGS[case])
    ids = torch.randint(0, 97, (3, 24))
    ids[:, :14] = ids[0, :14]
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits
    ours = wrap(theirs, case)
    found = forest(ours.config).shared_prefix_logits(ours, ids, 14)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CONFIGS)
def test_every_family_is_served_in_half_precision(
    case: str, dtype: torch.dtype, forest: Callable[..., Any]
) -> None:
    theirs = random_model(*CONFIGS[case]).to(dtype)
    ids = torch.randint(0, 97, (2, 24))
    ids[:, :14] = ids[0, :14]
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits.float()
    ours = wrap(theirs, case)
    assert ours.config.dtype == str(dtype).removeprefix("torch.")
    found = forest(ours.config).shared_prefix_logits(ours, ids, 14)
    error = (found - expected).square().mean().sqrt() / expected.std()
    assert float(error) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_logits_than_transformers_are_refused(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = random_model(*CONFIGS["olmo2"]).to(dtype)
    wrong = torch.randn(transformers_model._NUM_PROBE, 97)
    monkeypatch.setattr(transformers_model, "_probe", lambda *_: wrong)
    with pytest.raises(ModelFormatError, match="gives other logits"):
        wrap(theirs, "olmo2")


def test_reads_windows_and_heads_from_what_the_layers_ask_for() -> None:
    config = wrap(random_model(*CONFIGS["cohere2-window"]), "cohere2").config
    assert config.windows == (6, 6, 6)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert config.context_length == 256


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("BloomConfig", {"vocab_size": 97, "hidden_size": 48, "n_layer": 2, "n_head": 4}),
        ("MambaConfig", {"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 2}),
        (
            "Lfm2Config",
            GROUPED | {"layer_types": ["conv", "full_attention", "conv"], "block_ff_dim": 80},
        ),
    ],
    ids=["alibi", "state-space", "convolution-between-tokens"],
)
def test_refuses_what_attention_does_not_see(kind: str, options: dict[str, Any]) -> None:
    model = random_model(kind, options)
    with pytest.raises(ModelFormatError, match=rf"tiny: architecture '{model.config.model_type}'"):
        wrap(model, "tiny")


def test_loads_from_a_folder(tmp_path: Path, forest: Callable[..., Any]) -> None:
    from radixlang.runtime.models.transformers_model import load_transformers_model

    theirs = random_model(*CONFIGS["olmo2"])
    theirs.save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    ours = load_transformers_model(tmp_path, config, torch.float32, torch.device("cpu"))
    ids = torch.randint(0, 97, (1, 12))
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits
    found = forest(ours.config).shared_prefix_logits(ours, ids, 6)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)
    assert ours.num_weight_bytes == sum(p.nbytes for p in theirs.parameters())


def test_a_folder_without_weights_is_a_format_error(tmp_path: Path) -> None:
    from radixlang.runtime.models.transformers_model import load_transformers_model

    config = random_model(*CONFIGS["olmo2"]).config
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelFormatError, match="transformers cannot load this model"):
        load_transformers_model(tmp_path, config, torch.float32, torch.device("cpu"))
