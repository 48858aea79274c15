"""Scoring rollouts again: the tree computed once, next to a loop over transformers.

    python -m benchmarks.rollouts [--prompts 4] [--samples 16] [--tokens 48] [--loop 2]

Groups of samples below prompts that share `--shared` tokens, sampled and scored in float32 by the
default model. The loop computes `--loop` of the rows as a whole, and counts as if it had done all.
The exit status is 1 if a replayed log-probability is not within 1e-3 of the sampled one and of the
loop's, or if more tokens were computed than the tree has.
"""

from __future__ import annotations

import argparse
import time

import torch

import radixlang
from benchmarks.workloads import Text, corpus
from radixlang import Rollout, Runtime, State, gen
from radixlang.runtime.models.locate import find_default_model

MAX_DIFFERENCE = 1e-3


@radixlang.function
def sample(s: State, shared: str, prompts: list[str], num: int, tokens: int) -> None:
    """Groups below one prefix."""
    s += shared
    for prompt in prompts:
        branch = s.copy()
        branch += prompt
        group = branch.fork(num)
        group += gen("x", max_tokens=tokens, min_tokens=tokens, logprobs=True)


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--shared", type=int, default=512)
    parser.add_argument("--loop", type=int, default=2, help="rows that the loop computes")
    options = parser.parse_args()
    with Runtime(dtype="float32", quantization=None, seed=0) as runtime:
        text = Text(runtime.tokenizer.encode(corpus()))
        shared = runtime.decode(text.take(options.shared))
        prompts = [runtime.decode(text.take(32)) for _ in range(options.prompts)]
        begun = time.perf_counter()
        state = sample.run(shared, prompts, options.samples, options.tokens, runtime=runtime)
        sampling_s = time.perf_counter() - begun
        tree = state.tree()
        rows = tree.flatten()
        runtime.flush_cache()
        runtime.reset_stats()
        begun = time.perf_counter()
        scores = runtime.score(rows)
        ours_s = time.perf_counter() - begun
        computed = runtime.stats().num_computed_tokens
    replayed = max(
        _worst(row.logprobs or (), found) for row, found in zip(rows, scores, strict=True)
    )
    theirs_s, apart = by_loop(rows[: options.loop], scores)
    theirs_s *= len(rows) / options.loop
    shown = {
        "rollouts": len(rows),
        "tokens of rows": f"{sum(len(row.token_ids) for row in rows):,}",
        "of the tree": f"{tree.num_tokens:,}",
        "computed": f"{computed:,}",
        "sampling, s": f"{sampling_s:.2f}",
        "scoring, s": f"{ours_s:.2f}",
        "loop, s": f"{theirs_s:.2f}",
        "loop ÷ ours": f"{theirs_s / ours_s:.1f}×",
        "against sampling": f"{replayed:.1g}",
        "against the loop": f"{apart:.1g}",
    }
    for line in (shown, ["---"] * len(shown), shown.values()):
        print(f"| {' | '.join(map(str, line))} |")
    return int(max(replayed, apart) > MAX_DIFFERENCE or computed > tree.num_tokens)


def _worst(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@torch.inference_mode()
def by_loop(rows: list[Rollout], scores: list[tuple[float, ...]]) -> tuple[float, float]:
    """Seconds of a loop over whole rows, and the largest difference of its log-probabilities."""
    from transformers import AutoModelForCausalLM

    path = find_default_model()
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    worst, begun = 0.0, time.perf_counter()
    for row, found in zip(rows, scores, strict=False):
        num = len(row.completion_ids)
        logits = model(torch.tensor([row.token_ids]), logits_to_keep=num + 1).logits[0, :-1]
        targets = torch.tensor(row.completion_ids)[:, None]
        logprobs = logits.float().log_softmax(-1).gather(1, targets)[:, 0]
        worst = max(worst, float((logprobs - torch.tensor(found)).abs().max()))
    return time.perf_counter() - begun, worst


if __name__ == "__main__":
    raise SystemExit(main())
