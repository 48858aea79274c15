"""Tiny random models as transformers has them and as ours, with adapters that PEFT has written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

SHAPE = {
    "vocab_size": 413, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
WINDOWS = {
    "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma3": ("Gemma3TextConfig", WINDOWS),
    "phi3": ("Phi3Config", {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 0}),
}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


def reference_model(family: str) -> Any:
    """A random model of transformers, float32, eager attention."""
    import transformers

    kind, options = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**SHAPE, **options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(0, weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.2)
            if "norm" in name and not kind.startswith("Gemma"):
                weight.add_(1)
    return model.eval()


def save_adapter(family: str, folder: Path, *, seed: int = 1, **options: Any) -> Path:
    """Let PEFT write an adapter of random matrices for a family's model."""
    import peft

    config = {"r": 4, "lora_alpha": 6, "target_modules": FUSED if family == "phi3" else ALL}
    config |= {"task_type": "CAUSAL_LM", **options}
    with _quiet():
        model = peft.get_peft_model(reference_model(family), peft.LoraConfig(**config))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_" in name:
                weight.normal_(0, 0.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(str(folder))
    return folder


@contextmanager
def _quiet() -> Iterator[None]:
    """PEFT asks transformers for a property that warns of its next name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@dataclass
class Reference:
    """PEFT's own answers: greedy tokens and log-probabilities of all tokens [n, vocab]."""

    family: str
    folders: dict[str, Path] = field(default_factory=dict)
    _model: Any = None

    @property
    def model(self) -> Any:
        """PEFT's model with all adapters."""
        import peft

        if self._model is None:
            names = iter(self.folders.items())
            first, folder = next(names)
            with _quiet():
                self._model = peft.PeftModel.from_pretrained(
                    reference_model(self.family), str(folder), adapter_name=first
                )
            for name, folder in names:
                self._model.load_adapter(str(folder), adapter_name=name)
            self._model.eval()
        return self._model

    @torch.no_grad()
    def answer(
        self, prompt: Sequence[int], adapter: str | None, count: int, *, begin: int = 0,
        scale: float = 1.0, layers: Sequence[int] | None = None,
    ) -> tuple[list[int], torch.Tensor]:  # fmt: skip
        """What follows a prompt, its first `begin` tokens read by the base model alone."""
        import transformers

        model = self.model
        cache = transformers.DynamicCache(config=model.config)
        if begin:
            with model.disable_adapter():
                model(torch.tensor([prompt[:begin]]), cache=cache, use_cache=True)
        ids, tokens, rows = list(prompt[begin:]), [], []
        for _ in range(count):
            logits = self._logits(model, ids, cache, adapter, scale, layers)
            rows.append(logits.log_softmax(-1))
            tokens.append(int(logits.argmax()))
            ids = tokens[-1:]
        return tokens, torch.stack(rows)

    def _logits(
        self, model: Any, ids: list[int], cache: Any, adapter: str | None, scale: float,
        layers: Sequence[int] | None,
    ) -> torch.Tensor:  # fmt: skip
        inputs = {"input_ids": torch.tensor([ids]), "cache": cache, "use_cache": True}
        if adapter is None:
            with model.disable_adapter():
                return model(**inputs).logits[0, -1]
        model.set_adapter(adapter)
        changed = [(module, module.scaling[adapter]) for module in self._modules(model, adapter)]
        try:
            for module, scaling in changed:
                index = next(int(p) for p in module.radix_name.split(".") if p.isdecimal())
                acts = layers is None or index in layers
                module.scaling[adapter] = scaling * scale if acts else 0.0
            found: torch.Tensor = model(**inputs).logits[0, -1]
            return found
        finally:
            for module, scaling in changed:
                module.scaling[adapter] = scaling

    def _modules(self, model: Any, adapter: str) -> list[Any]:
        found = []
        for name, module in model.named_modules():
            if adapter in getattr(module, "lora_A", {}):
                module.radix_name = name
                found.append(module)
        return found


def our_model(family: str, tiny: Any, dtype: torch.dtype = torch.float32) -> Any:
    """The same random model as ours, with the tests' tokenizer."""
    from radixlang.runtime.models.assemble import build_decoder
    from radixlang.runtime.models.config import from_transformers
    from radixlang.runtime.models.model import LoadedModel
    from radixlang.runtime.models.weights import StateDictWeights
    from radixlang.runtime.process.native_library import native_library

    reference = reference_model(family)
    name = str(dtype).removeprefix("torch.")
    config = from_transformers(reference.config, name=f"tiny {family}", dtype=name)
    source = StateDictWeights(reference.state_dict(), "memory", post_norms=config.post_norms)
    model = build_decoder(
        config, source, dtype=dtype, device=torch.device("cpu"), library=native_library()
    )
    return LoadedModel(model, tiny.tokenizer, config)


@pytest.fixture(scope="module")
def reference_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Reference]:
    """Makes a Reference with adapters "a" and "b" (and others by their options)."""
    made: dict[str, Reference] = {}

    def make(family: str, **adapters: dict[str, Any]) -> Reference:
        if family not in made or adapters:
            wanted: dict[str, dict[str, Any]] = adapters or {"a": {}, "b": {"r": 8, "seed": 2}}
            folder = tmp_path_factory.mktemp(family)
            folders = {name: save_adapter(family, folder / name, **options)
                       for name, options in wanted.items()}  # fmt: skip
            made[family] = Reference(family, folders)
        return made[family]

    return make
