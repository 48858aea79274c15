"""What the cache costs when nothing is reused: the same requests with it on and off, in turn.

    python benchmarks/no_reuse.py [--rounds 6] [--requests 16] [--prompt 256] [--new 64]

Every round has new random prompts, sent at once, greedy, end tokens ignored; the pool holds them
once and a half, so with the cache on every round also evicts. "Off" is the same engine without
matching and inserting: a request holds its tokens privately and frees them at its end. Both
runtimes share one model; which goes first alternates. Prints the ratio of their times (the median
of the rounds' ratios; goal: under 1 % above 1), and the share of a run that the cache's upkeep
takes: match, insert, leases, eviction, leaders and compaction (goal: under 0.3 %).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from radixlang.runtime.models.loader import load_model
from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams

UPKEEP = {  # what a server without a cache would not do
    "memory": ("attach", "commit", "detach", "follow", "free"),
    "scheduler": ("_park", "_lead", "committed"),
    "upkeep": ("after_step",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", help="default: SmolLM2")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--new", type=int, default=64)
    options = parser.parse_args()
    model = load_model(options.model)
    num_pages = int(1.5 * options.requests * (options.prompt + options.new))
    on, off = (Runtime(model, num_pages=num_pages, seed=0) for _ in range(2))
    switch_off(off)
    clock = Clock()
    clock.watch(on)
    rng = np.random.default_rng(0)
    pairs, shares = [], []
    gc.freeze()
    for number in range(options.rounds + 1):
        work = [draw(rng, model.config.vocab_size, options) for _ in range(2)]
        order = (on, off) if number % 2 else (off, on)
        clock.seconds = 0.0
        taken = {
            runtime: serve(runtime, each, options.new)
            for runtime, each in zip(order, work, strict=True)
        }
        if number:  # the first warms up
            pairs.append(taken[on] / taken[off])
            shares.append(clock.seconds / taken[on])
            print(f"on {taken[on]:.3f} s, off {taken[off]:.3f} s, ratio {pairs[-1]:.4f}, "
                  f"upkeep {shares[-1]:.2%}")  # fmt: skip
    stats = on.stats()
    assert stats.num_cached_tokens == 0, stats
    print(
        f"{options.requests} requests of {options.prompt} + {options.new} tokens, "
        f"{stats.num_evicted_tokens:,} tokens evicted: ratio {statistics.median(pairs):.4f} "
        f"(from {min(pairs):.4f} to {max(pairs):.4f}), upkeep {statistics.median(shares):.3%}"
    )
    on.close()
    off.close()


def draw(rng: np.random.Generator, vocab_size: int, options: Any) -> list[list[int]]:
    """Prompts that share nothing, not even their first token."""
    firsts = rng.choice(vocab_size // 2, options.requests, replace=False)
    rest = rng.integers(100, vocab_size // 2, (options.requests, options.prompt - 1))
    return [[int(first), *row.tolist()] for first, row in zip(firsts, rest, strict=True)]


def serve(runtime: Runtime, prompts: list[list[int]], num_new: int) -> float:
    """Seconds that the prompts take, all at once."""
    params = SamplingParams(max_tokens=num_new, min_tokens=num_new, temperature=0.0,
                            ignore_eos=True, heal=False)  # fmt: skip
    branches = [runtime.new_branch() for _ in prompts]
    start = time.perf_counter()
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.extend(prompt)
    generations = [branch.generate(params) for branch in branches]
    for branch in branches:
        branch.release()
    for generation in generations:
        generation.result()
    return time.perf_counter() - start


def switch_off(runtime: Runtime) -> None:
    """Take the cache out of an engine: nothing is found in the tree, and nothing comes into it."""
    memory: Any = runtime.core.memory
    scheduler: Any = runtime.core.scheduler

    def attach(sequence: Any) -> None:
        sequence.lease = memory.tree.lease(memory.tree.root(sequence.namespace), sequence.holder)

    memory.attach = attach
    memory.commit = memory.follow = lambda *_: None
    memory.ends.put = lambda *_: None
    scheduler._park = lambda _: False
    scheduler._lead = scheduler.committed = lambda _: None


class Clock:
    """Adds up the time spent in the cache's upkeep; calls within each other count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_inside = False

    def watch(self, runtime: Runtime) -> None:
        for part, names in UPKEEP.items():
            owner = getattr(runtime.core, part)
            for name in names:
                setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            if self._is_inside:
                return function(*args, **options)
            self._is_inside = True
            start = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds += time.perf_counter() - start
                self._is_inside = False

        return timed


if __name__ == "__main__":
    main()
