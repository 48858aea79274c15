"""How far the 8-bit model is from float32 on real text: KL divergence, top-1 agreement, loss.

    python benchmarks/quality.py [model ...] [--tokens 256] [--json FILE]

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


def compare(name: str | None, num_tokens: int) -> dict[str, Any]:
    """The figures of one model, each a mean over all tokens of all passages."""
    exact, coarse = (load_model(name, quantization=q) for q in (None, "int8"))
    divergence, agree, losses, count = 0.0, 0, [0.0, 0.0], 0
    for text in passages():
        ids = torch.tensor(exact.tokenizer.encode_run([text], at_start=True)[:num_tokens])
        a, b = (log_probabilities(loaded, ids) for loaded in (exact, coarse))
        divergence += float((a.exp() * (a - b)).sum())
        agree += int((a.argmax(-1) == b.argmax(-1)).sum())
        for place, table in enumerate((a, b)):
            losses[place] -= float(table[:-1].gather(1, ids[1:, None]).sum())
        count += len(ids)
    kl, top1 = divergence / count, agree / count
    return {
        "model": exact.config.name,
        "tokens": count,
        "kl": round(kl, 5),
        "top1": round(top1, 4),
        "nll_float32": round(losses[0] / count, 4),
        "nll_int8": round(losses[1] / count, 4),
        "megabytes_float32": round(exact.model.num_weight_bytes / 1e6, 1),
        "megabytes_int8": round(coarse.model.num_weight_bytes / 1e6, 1),
        "passes": kl <= MAX_KL and top1 >= MIN_TOP1,
    }


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
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of a passage")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    rows = [compare(name, options.tokens) for name in options.models]
    print_table(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return 0 if all(row["passes"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
