"""SmolLM2 and Gemma 3 from their GGUF files: tokens and logits equal to transformers'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
    GGUF_TOKENIZER_MAPPING,
    convert_gguf_tokenizer,
)

import radixlang
from radixlang.runtime.models.gguf.file import GgufFile
from radixlang.runtime.models.loader import load_gguf_tokenizer, load_model

pytestmark = pytest.mark.model
PREFIX, TAIL = 560, 12  # past the 512 tokens of Gemma 3's window
ROOT = Path(radixlang.__file__).resolve().parent


def real_text() -> list[str]:
    """Python source, prose and text in other scripts."""
    sources = sorted(ROOT.glob("*.py"))[:6]
    files = [path.read_text("utf-8")[:6000] for path in sources]
    return [
        *files,
        "In 1968, Donald R. Morrison described PATRICIA: a trie with 3.14159 fewer nodes…",
        "Größe, naïve café – «écoute» “quotes” №5 ½ ² λ→μ\n\n\n\tTab  and   spaces   end.  ",
        "日本語のテキスト、한국어 텍스트, русский текст, العربية, हिन्दी, 😀👩‍👩‍👧",
        "it's we'll I'd they've DON'T can’t __init__ foo_bar2 x1y2 http://a.b/c?d=e&f=%20",
    ]


def transformers_tokenizer(file: GgufFile) -> Any:
    """What transformers builds from a file's metadata; its own reading of it takes 20 s more."""
    values = {ours: file.metadata[f"tokenizer.{theirs}"]
              for theirs, ours in GGUF_TOKENIZER_MAPPING["tokenizer"].items()
              if f"tokenizer.{theirs}" in file.metadata}  # fmt: skip
    plain = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in values.items()}
    backend, _ = convert_gguf_tokenizer(file.metadata["general.architecture"], plain)
    return backend


def test_smollm2_tokenises_as_transformers_does(smollm2_path: Path) -> None:
    """Except that transformers forgets SmolLM's splitting of digits when it reads a GGUF file.

    It shows where several spaces stand before a digit. With the digit splitter of the model's own
    tokenizer.json put back, all text agrees.
    """
    from tokenizers import pre_tokenizers

    file = GgufFile(smollm2_path)
    theirs, ours = transformers_tokenizer(file), load_gguf_tokenizer(file)
    for text in real_text():
        if "  " not in text:
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )  # fmt: skip
    for text in real_text():
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(ours.encode(text)) == text


def test_gemma3_tokenises_as_transformers_does(gemma3_path: Path) -> None:
    file = GgufFile(gemma3_path)
    theirs, ours = transformers_tokenizer(file), load_gguf_tokenizer(file)
    assert ours.bos_token_id == 2
    for text in real_text():
        ids = ours.encode_run([text], at_start=True)
        assert ids == [2, *theirs.encode(text, add_special_tokens=False).ids]
        assert ours.decode(ids) == "<bos>" + text


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_logits_equal_transformers(
    name: str,
    request: pytest.FixtureRequest,
    forest: Callable[..., Any],
    transformers_from_gguf: Callable[[Path], Any],
) -> None:
    path: Path = request.getfixturevalue(f"{name}_path")
    loaded = load_model(path, quantization=None)
    text = "".join(real_text())
    ids = torch.tensor(loaded.tokenizer.encode_run([text], at_start=True)[: PREFIX + TAIL])
    theirs = transformers_from_gguf(path)
    with torch.no_grad():
        expected = theirs(ids[None], use_cache=False, logits_to_keep=TAIL + 1).logits[0]
    pool = forest(loaded.config, PREFIX + TAIL)
    slots = pool.alloc(PREFIX), pool.alloc(TAIL)
    plan = pool.plan(slots[0][:0], [slots[0]], [PREFIX])
    hidden = loaded.model.forward(ids[:PREFIX], plan.positions, plan, pool.kv)
    rows = [loaded.model.logits(hidden[-1:])]
    for end in range(1, TAIL + 1):
        plan = pool.plan(slots[0], [slots[1][:end]], [1])
        rows.append(pool.logits(loaded.model, ids[PREFIX + end - 1 : PREFIX + end], plan))
    found = torch.cat(rows)
    assert float((found - expected).abs().max()) < 5e-4
    chosen = expected.gather(1, found.argmax(-1, keepdim=True))[:, 0]
    assert float((expected.amax(-1) - chosen).max()) < 1e-3  # the same token, or one tied with it
