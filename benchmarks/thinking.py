"""A chat of ten turns in which the model thinks before each answer: what is computed, and how long.

    python -m benchmarks.thinking [--turns 10] [--think 64] [--answer 32]

The same tokens are generated three times on the default model: with the thought leaving the prompt,
as `gen(think=…)` does; with the thought kept; and by a loop over a runtime without a tree, which
computes every prompt as a whole (the cache is emptied before each turn). The end of a thought
is forced by its budget, so that every run writes as much. Exit status 1: a token of the
conversation was computed twice.
"""

from __future__ import annotations

import argparse
import time

import radixlang
from benchmarks.workloads import Text, corpus
from radixlang import Markup, Runtime, State, gen

TAGS = ("<think>\n", "\n</think>\n\n")


@radixlang.function
def chat(s: State, questions: list[str], think: int, answer: int, keep: bool, whole: bool) -> None:
    """The turns, one after another; `whole` empties the cache before each."""
    runtime = s._run().backend
    for index, question in enumerate(questions):
        s += Markup("<|im_start|>user\n") + question + Markup("<|im_end|>\n<|im_start|>assistant\n")
        if whole:
            s.text()
            runtime.flush_cache()
        s += gen(f"a{index}", think=think, think_tags=TAGS, keep_thinking=keep, max_tokens=answer,
                 min_tokens=answer)  # fmt: skip
        s += Markup("<|im_end|>\n")
        s.text()


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--think", type=int, default=64, help="tokens of a thought")
    parser.add_argument("--answer", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--question", type=int, default=48, help="tokens of a question")
    options = parser.parse_args()
    print("| | seconds | tokens computed | of prompts, in the cache |")
    print("|---|---|---|---|")
    again = 0
    with Runtime(seed=0) as runtime:
        text = Text(runtime.tokenizer.encode(corpus()))
        questions = [runtime.decode(text.take(options.question)) for _ in range(options.turns)]
        for name, keep, whole in (
            ("the thought leaves the prompt", False, False),
            ("the thought stays", True, False),
            ("the thought leaves, no tree", False, True),
        ):
            runtime.flush_cache()
            runtime.reset_stats()
            begun = time.perf_counter()
            chat.run(questions, options.think, options.answer, keep, whole, runtime=runtime,
                     temperature=0, ignore_eos=True)  # fmt: skip
            seconds = time.perf_counter() - begun
            stats = runtime.stats()
            share = stats.num_cached_tokens / stats.num_prompt_tokens
            print(f"| {name} | {seconds:.2f} | {stats.num_computed_tokens:,} | {share:.0%} |")
            if not whole:
                again += stats.num_recomputed_tokens
    print(f"\ntokens of the conversation that were computed again: {again}")
    return int(again > 0)


if __name__ == "__main__":
    raise SystemExit(main())
