"""How far a quantized model is from float32 of its file: KL divergence, top-1 agreement, loss.

    python benchmarks/quality.py [model ...] [--by file int8] [--tokens 256] [--json FILE]

The text is what comes with Python: pages of its reference (pydoc_data), docstrings, sources and
the licence. Each passage is read from its start; both models see the same tokens. Exit status is 1
where a model misses the bounds: mean KL at most 0.01, the same likeliest token at least 0.95.
"""

from __future__ import annotations

import argparse
import collections
import decimal
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch

from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.plan.tree_batch import chain
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.model import LoadedModel, plan_for

MAX_KL, MIN_TOP1 = 0.01, 0.95


def passages() -> Iterator[str]:
    """Real text that every Python has."""
    pages = [topics[key] for key in sorted(topics)[::9] if len(topics[key]) > 1500]
    yield from pages[:10]
    yield inspect.getdoc(argparse) or ""
    yield (re.__doc__ or "") + (decimal.__doc__ or "")
    yield inspect.getsource(collections)[1500:]
    yield inspect.getsource(textwrap)
    yield (Path(__file__).resolve().parent.parent / "LICENSE").read_text("utf-8")


def log_probabilities(loaded: LoadedModel, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [num_tokens, vocab_size] of the next token after each."""
    config, count = loaded.config, len(ids)
    size = (count, config.num_kv_heads, config.head_dim)
    dtype = getattr(torch, config.kv_dtype)
    kv = [LayerKV(*torch.zeros(2, *size, dtype=dtype)) for _ in range(config.num_layers)]
    plan = plan_for(loaded.model, chain((0, count), 0))
    hidden = loaded.model.forward(ids, plan.positions, plan, kv)
    return loaded.model.logits(hidden).log_softmax(-1)


def compare(name: str | None, ways: Sequence[str], num_tokens: int) -> Iterator[dict[str, Any]]:
    """The figures of one model by each quantization, each a mean over all tokens of all texts."""
    exact = load_model(name, quantization=None)
    models = [load_model(name, quantization=way) for way in ways]
    sums, float_loss, count = [Sums() for _ in ways], 0.0, 0
    for text in passages():
        ids = torch.tensor(exact.tokenizer.encode_run([text], at_start=True)[:num_tokens])
        expected = log_probabilities(exact, ids)
        float_loss += loss(expected, ids)
        for model, found in zip(models, sums, strict=True):
            found.add(expected, log_probabilities(model, ids), ids)
        count += len(ids)
    for way, model, found in zip(ways, models, sums, strict=True):
        kl, top1 = found.divergence / count, found.agree / count
        yield {
            "model": exact.config.name,
            "by": way,
            "tokens": count,
            "kl": round(kl, 5),
            "top1": round(top1, 4),
            "nll_float32": round(float_loss / count, 4),
            "nll": round(found.loss / count, 4),
            "megabytes_float32": round(exact.model.num_weight_bytes / 1e6, 1),
            "megabytes": round(model.model.num_weight_bytes / 1e6, 1),
            "passes": kl <= MAX_KL and top1 >= MIN_TOP1,
        }


def loss(table: torch.Tensor, ids: torch.Tensor) -> float:
    """The sum of the negative log-probabilities of a text's tokens."""
    return -float(table[:-1].gather(1, ids[1:, None]).sum())


@dataclass
class Sums:
    """Over tokens: divergence from the expected table, agreement on the likeliest, and loss."""

    divergence: float = 0.0
    agree: int = 0
    loss: float = 0.0

    def add(self, expected: torch.Tensor, found: torch.Tensor, ids: torch.Tensor) -> None:
        """Count the tables [num_tokens, vocab_size] of one text."""
        self.divergence += float((expected.exp() * (expected - found)).sum())
        self.agree += int((expected.argmax(-1) == found.argmax(-1)).sum())
        self.loss += loss(found, ids)


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Markdown, the keys of the first row as its head."""
    print("| " + " | ".join(rows[0]) + " |")
    print("|---" * len(rows[0]) + "|")
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")


def main() -> int:
    """Print a table, write JSON where asked, and say with the exit status whether all pass."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", default=[None], help="default: SmolLM2")
    parser.add_argument(
        "--by", nargs="+", default=["file", "int8"], help="quantizations: file, int8"
    )
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of a passage")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    rows = [row for name in options.models for row in compare(name, options.by, options.tokens)]
    print_table(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return 0 if all(row["passes"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
