"""Token-level programs next to loops over transformers: the same numbers, in how many seconds.

    python -m benchmarks.token_level [--tails 256] [--prefix 1024] [--loop 8]

Both run the default model in float32 on the same machine, one after the other. `next_token` reads
the distribution after `--tails` tails below one prefix; the loop computes `--loop` of these prompts
and counts as if it had done all (pass `--loop 256` to let it). `logit_bias` and `logits=` generate
8 tokens greedily from 16 of the prompts; `contrast` does so from 16 and from the same without the
first half of the prefix, with weight 1.5. The exit status is 1 if a number differs: a
log-probability by more than 1e-3, or a token.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.workloads import Text, corpus
from radixlang import Runtime, SamplingParams
from radixlang.protocol import Contrast
from radixlang.runtime.models.locate import find_default_model

MAX_DIFFERENCE = 1e-3
NUM_NEW = 8
Prompts = list[list[int]]


def main() -> int:
    """Print a table; the exit status says whether the numbers are the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tails", type=int, default=256)
    parser.add_argument("--tail", type=int, default=12, help="tokens of a tail")
    parser.add_argument("--prefix", type=int, default=1024)
    parser.add_argument("--loop", type=int, default=8, help="prompts that the loop computes")
    options = parser.parse_args()
    with Runtime(dtype="float32", quantization=None, seed=0) as runtime:
        text = Text(runtime.tokenizer.encode(corpus()))
        prefix = list(text.take(options.prefix))
        prompts = [prefix + list(text.take(options.tail)) for _ in range(options.tails)]
        loop = Loop()
        rows = [next_tokens(runtime, loop, prompts, options.loop)]
        rows += [changed(runtime, loop, prompts[:16], name, options.loop) for name in CHANGES]
        rows.append(contrasted(runtime, loop, prompts[:16], options.prefix // 2, options.loop))
    print("| | prompts | radixlang, s | loop, s | loop ÷ ours | largest difference |")
    print("|---|---|---|---|---|---|")
    for name, num, ours_s, theirs_s, difference in rows:
        ratio = theirs_s / ours_s
        print(
            f"| {name} | {num} | {ours_s:.2f} | {theirs_s:.2f} | {ratio:.1f}× | {difference:.1g} |"
        )
    return int(any(row[-1] > MAX_DIFFERENCE for row in rows))


class Loop:
    """The plain loop: every prompt computed as a whole by transformers."""

    def __init__(self) -> None:
        from transformers import AutoModelForCausalLM

        path = find_default_model()
        self._model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()

    @torch.inference_mode()
    def logprobs(self, prompt: list[int]) -> torch.Tensor:
        """Log-probabilities after a prompt, [vocab_size]."""
        logits: torch.Tensor = self._model(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1]
        return logits.float().log_softmax(0)

    @torch.inference_mode()
    def generate(self, prompt: list[int], change: Callable[[torch.Tensor], None]) -> list[int]:
        """Greedy tokens, with keys and values kept from token to token."""
        ids, cache, made = torch.tensor([prompt]), None, []
        for _ in range(NUM_NEW):
            out = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            row = out.logits[0, -1].float()
            change(row)
            made.append(int(row.argmax()))
            ids, cache = torch.tensor([made[-1:]]), out.past_key_values
        return made

    @torch.inference_mode()
    def contrast(self, a: list[int], b: list[int]) -> list[int]:
        """Greedy tokens of both prompts' logits, with keys and values of both kept."""
        ids, caches, made = [a, b], [None, None], []
        for _ in range(NUM_NEW):
            rows = []
            for i in range(2):
                out = self._model(torch.tensor([ids[i]]), past_key_values=caches[i], use_cache=True,
                                  logits_to_keep=1)  # fmt: skip
                caches[i] = out.past_key_values
                rows.append(out.logits[0, -1].float().log_softmax(0))
            made.append(int((rows[1] + WEIGHT * (rows[0] - rows[1])).argmax()))
            ids = [made[-1:]] * 2
        return made


Row = tuple[str, int, float, float, float]


def next_tokens(runtime: Any, loop: Loop, prompts: Prompts, num_loop: int) -> Row:
    """The distributions after all prompts."""
    begun = time.perf_counter()
    branches = [runtime.new_branch() for _ in prompts]
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.extend(prompt)
    replies = [branch.next_token(top=20) for branch in branches]
    found = [reply.result() for reply in replies]
    ours_s = time.perf_counter() - begun
    for branch in branches:
        branch.release()
    difference, begun = 0.0, time.perf_counter()
    for prompt, ours in zip(prompts[:num_loop], found, strict=False):
        theirs = loop.logprobs(prompt)[list(ours.token_ids)]
        difference = max(difference, float((theirs - torch.tensor(ours.logprobs)).abs().max()))
    theirs_s = (time.perf_counter() - begun) / num_loop * len(prompts)
    return "next_token", len(prompts), ours_s, theirs_s, difference


def add_bias(row: torch.Tensor) -> None:
    """What the bias of `BIAS` does."""
    for token_id, value in BIAS.items():
        row[token_id] += value


WEIGHT = 1.5
BIAS = {28: -5.0, 284: 4.0, 198: -float("inf")}
CHANGES: dict[str, dict[str, Any]] = {
    "logit_bias": {"logit_bias": BIAS},
    "logits=f": {"logits": lambda context: add_bias(context.logits)},
}


def changed(runtime: Any, loop: Loop, prompts: Prompts, name: str, num_loop: int) -> Row:
    """Greedy generations whose logits are changed; a token that differs counts as 1."""
    params = SamplingParams(
        max_tokens=NUM_NEW, temperature=0, ignore_eos=True, heal=False, **CHANGES[name]
    )
    runtime.flush_cache()
    begun = time.perf_counter()
    branches = [runtime.new_branch() for _ in prompts]
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.extend(prompt)
    generations = [branch.generate(params) for branch in branches]
    found = [list(generation.result().token_ids) for generation in generations]
    ours_s = time.perf_counter() - begun
    for branch in branches:
        branch.release()
    num_loop = min(num_loop, len(prompts))
    begun = time.perf_counter()
    theirs = [loop.generate(prompt, add_bias) for prompt in prompts[:num_loop]]
    theirs_s = (time.perf_counter() - begun) / num_loop * len(prompts)
    return name, len(prompts), ours_s, theirs_s, float(theirs != found[:num_loop])


def contrasted(runtime: Any, loop: Loop, prompts: Prompts, cut: int, num_loop: int) -> Row:
    """Greedy contrasts with the same prompts cut at their beginning."""
    params = SamplingParams(max_tokens=NUM_NEW, temperature=0, ignore_eos=True)
    runtime.flush_cache()
    begun = time.perf_counter()
    pairs = [(runtime.new_branch(), runtime.new_branch()) for _ in prompts]
    for (a, b), prompt in zip(pairs, prompts, strict=True):
        a.extend(prompt)
        b.extend(prompt[cut:])
    generations = [a.contrast(b, params, Contrast(WEIGHT)) for a, b in pairs]
    found = [list(generation.result().token_ids) for generation in generations]
    ours_s = time.perf_counter() - begun
    for branch in (branch for pair in pairs for branch in pair):
        branch.release()
    num_loop = min(num_loop, len(prompts))
    begun = time.perf_counter()
    theirs = [loop.contrast(prompt, prompt[cut:]) for prompt in prompts[:num_loop]]
    theirs_s = (time.perf_counter() - begun) / num_loop * len(prompts)
    return "contrast", len(prompts), ours_s, theirs_s, float(theirs != found[:num_loop])


if __name__ == "__main__":
    raise SystemExit(main())
