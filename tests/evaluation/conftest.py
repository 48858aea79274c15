"""Tiny random models in folders that transformers and radixlang both read, and the harness's own
model over them: two tokenizers, byte-level and with byte fallback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MAX_LENGTH = 128
CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [
    "The theatre in the north of the town plays every night; the town sleeps in the morning.",
    "Paris is the capital of France, Rome of Italy, and the moon of nothing at all.",
]
FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
if "benchmarks" not in sys.modules:
    package = ModuleType("benchmarks")
    package.__path__ = [str(FOLDER)]
    sys.modules["benchmarks"] = package


@dataclass(frozen=True, slots=True)
class Request:
    """What the harness hands a model, as far as models read it."""

    args: tuple[Any, ...]


def _byte_level() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<|im_end|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS * 4, trainer)
    return backend


def _byte_fallback() -> Any:
    """Pieces of the texts, bytes for every other character, and a token that begins a text."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

    pieces = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=345,
        special_tokens=["<s>", "<|im_end|>", "<|im_start|>", *(f"<0x{i:02X}>" for i in range(256))],
        show_progress=False,
    )
    pieces.train_from_iterator([text.replace(" ", "▁") for text in TEXTS], trainer)
    state = __import__("json").loads(pieces.to_str())["model"]
    merges = [tuple(pair) for pair in state["merges"]]
    backend = Tokenizer(models.BPE(vocab=state["vocab"], merges=merges, byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens(["<s>", "<|im_end|>", "<|im_start|>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend


def _save(folder: Path, backend: Any) -> None:
    import torch
    import transformers

    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="<|im_end|>", padding_side="left"
    )
    fast.pad_token = "<|im_end|>"
    fast.chat_template = CHATML
    fast.save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=backend.get_vocab_size(), hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=4096, bos_token_id=fast.bos_token_id,
        eos_token_id=fast.eos_token_id, initializer_range=0.4,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@pytest.fixture(scope="session", params=["byte level", "byte fallback"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder."""
    path = tmp_path_factory.mktemp("model")
    _save(path, _byte_level() if request.param == "byte level" else _byte_fallback())
    return path


@pytest.fixture(scope="session")
def theirs(folder: Path) -> Any:
    """The harness's own model, in float32."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(str(folder), device="cpu", dtype="float32", batch_size=2, max_length=MAX_LENGTH)


@pytest.fixture
def ours(folder: Path, make_runtime: Callable[..., Any]) -> Any:
    """The same model on a fresh runtime, audited after every step."""
    from radixlang.evaluation.harness import RadixLM
    from radixlang.runtime.models.loader import load_model

    model = load_model(folder, quantization=None, dtype="float32")
    return RadixLM(make_runtime(model), max_length=MAX_LENGTH)


@pytest.fixture
def asked() -> Callable[..., list[Request]]:
    """Requests of the harness from their arguments."""
    return lambda *args: [Request(each if isinstance(each, tuple) else (each,)) for each in args]
