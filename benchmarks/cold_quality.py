"""What 8-bit keys and values do to the next token, on real text: KL divergence and top-1.

    python benchmarks/cold_quality.py [model ...] [--tokens 512] [--weights 8]

The first half of each passage is computed, and kept exact and in 8 bits, as the runtime keeps a
cold prefix. The second half is then computed twice, reading the one and the other; every position
of it counts. The model's weights are the checkpoint's own in both (or 8-bit in both). The text is
that of `quality.py`. Exit status is 1 where a model misses the bounds: mean KL at most 0.01, the
same likeliest token at least 0.95.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from quality import MAX_KL, MIN_TOP1, passages, print_table

from radixlang.kernels.plan.tree_batch import chain
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.model import LoadedModel, plan_for

Row = dict[str, object]


def main() -> int:
    """Print a table; the exit status says whether all pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", default=[None], help="default: SmolLM2")
    parser.add_argument("--tokens", type=int, default=512, help="most tokens of a passage")
    parser.add_argument("--weights", type=int, choices=(8, 32), default=32)
    options = parser.parse_args()
    quantization = "int8" if options.weights == 8 else None
    loaded = [load_model(name, quantization=quantization) for name in options.models]
    rows = [measure(model, options.tokens) for model in loaded]
    print_table(rows)
    return 0 if all(row["passes"] for row in rows) else 1


def measure(loaded: LoadedModel, max_tokens: int) -> Row:
    """The figures of one model, each a mean over the second halves of all passages."""
    divergences, agreements, losses = [], [], ([], [])
    for text in passages():
        ids = torch.tensor(loaded.tokenizer.encode_run([text], at_start=True)[:max_tokens])
        exact, cold = both(loaded, ids)
        divergences.append((exact.exp() * (exact - cold)).sum(-1))
        agreements.append((exact.argmax(-1) == cold.argmax(-1)).float())
        targets = ids[len(ids) - len(exact) + 1 :, None]
        for table, found in ((exact, losses[0]), (cold, losses[1])):
            found.append(-table[:-1].gather(1, targets)[:, 0])
    kl, top1 = (torch.cat(each) for each in (divergences, agreements))
    config = loaded.config
    cache = new_cache(loaded, 1)
    return {
        "model": config.name,
        "tokens": len(kl),
        "mean KL": f"{float(kl.mean()):.5f}",
        "99th percentile": f"{float(kl.quantile(0.99)):.4f}",
        "same top-1": f"{float(top1.mean()):.4f}",
        "loss exact": f"{float(torch.cat(losses[0]).mean()):.4f}",
        "loss 8-bit": f"{float(torch.cat(losses[1]).mean()):.4f}",
        "bytes a token exact": cache.bytes_per_token,
        "bytes a token 8-bit": cache.cold_bytes_per_token,
        "passes": float(kl.mean()) <= MAX_KL and float(top1.mean()) >= MIN_TOP1,
    }


def both(loaded: LoadedModel, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities [second half, vocab_size] over the exact and the 8-bit first half."""
    half, count = len(ids) // 2, len(ids)
    cache = new_cache(loaded, count)
    forward(loaded, cache, ids, (0, half), cold=False)
    slots = np.arange(half, dtype=np.int32)
    cache.quantize(slots, slots)
    cuts = (0, half, count)
    exact, cold = (forward(loaded, cache, ids, cuts, cold=cold) for cold in (False, True))
    return exact, cold


def new_cache(loaded: LoadedModel, num_tokens: int) -> KVCache:
    config = loaded.config
    return KVCache(
        num_tokens, config.num_layers, config.num_kv_heads, config.head_dim,
        num_cold_slots=num_tokens, dtype=getattr(torch, config.dtype),
    )  # fmt: skip


def forward(
    loaded: LoadedModel, cache: KVCache, ids: torch.Tensor, cuts: Sequence[int], *, cold: bool
) -> torch.Tensor:
    """Log-probabilities of the last segment's tokens; slots are positions."""
    start = cuts[-2]
    plan = plan_for(loaded.model, chain(cuts, start, quantized=cold))
    hidden = loaded.model.forward(ids[start : cuts[-1]], plan.positions, plan, cache)
    return loaded.model.logits(hidden).log_softmax(-1)


if __name__ == "__main__":
    raise SystemExit(main())
