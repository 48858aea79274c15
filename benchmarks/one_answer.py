"""One answer: do the same prompts give the same bits, whatever else is computed?

    python -m benchmarks.one_answer
    python -m benchmarks.one_answer --prompts 12 --tokens 16 --weights float32 --condition batch

Each prompt is answered alone with an empty cache, greedily and by a seed, and options are scored
after it. Then the same under each condition, and on every instruction set that this machine has.
Prints how many answers differ in their text, and how many in a bit of their log-probabilities;
exits with 1 where one does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from radixlang import Runtime, SamplingParams
from radixlang.kernels.native.library import VARIABLE, isas
from radixlang.protocol import Generation, OptionScore, Reply
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.model import LoadedModel
from radixlang.runtime.process.native_library import native_library
from radixlang.runtime.saved_prefixes.store import load_prefix, save_prefix

STEMS = (
    "You are a careful historian. Answer in plain prose, and name the years of what you tell. "
    "Keep to what is known, and say so where it is not.\n\n",
    "Below is a list of instructions for a cook in a small kitchen. Each begins with a verb and "
    "names the amounts. Do not repeat a step.\n\n",
    "def solve(problem):\n    result = []\n    for line in problem:\n        if line:\n",
    "Letters from the lighthouse, a novel in twelve chapters. The keeper's daughter writes to her "
    "brother at sea about storms, visitors and the price of oil.\n\n",
)
ENDS = (
    "The first city", "A loaf of rye bread", "The number of apples that", "On the fourth day",
    "It is often said that water", "When the king died, his", "Take three eggs and",
    "If x is 7 and y is 12, then", "My dear brother, the ship", "The oldest bridge in the",
    "Before the oven is hot,", "Two trains leave", "Nobody had seen the", "In 1492 the",
    "Boil the potatoes",
)  # fmt: skip
OPTIONS = (" was", " is not known to anyone")
WEIGHTS = {"int8": "int8", "file": "file", "float32": None}


@dataclass(frozen=True, slots=True)
class Answer:
    """What followed a prompt, the log-probabilities of its tokens, and those of the options."""

    token_ids: list[int]
    logprobs: list[float]
    scores: list[float]


@dataclass(frozen=True, slots=True)
class Questions:
    """Prompts, each asked greedily and with a seed."""

    prompts: tuple[str, ...]
    num_tokens: int

    @classmethod
    def of(cls, num_prompts: int, num_tokens: int) -> Questions:
        """Some of the prompts, which share four beginnings."""
        return cls(
            tuple(STEMS[i % 4] + f"{i}. " + ENDS[i // 4 % 15] for i in range(num_prompts)),
            num_tokens,
        )

    def params(self, number: int, *, greedy: bool) -> SamplingParams:
        """How a prompt is answered."""
        return SamplingParams(
            temperature=0 if greedy else 0.9, top_p=1.0 if greedy else 0.95, seed=1000 + number,
            max_tokens=self.num_tokens, ignore_eos=True, logprobs=True,
        )  # fmt: skip


Started = tuple[Generation, Reply[list[OptionScore]]]


def _started(runtime: Runtime, questions: Questions, number: int, *, greedy: bool) -> Started:
    branch = runtime.new_branch()
    branch.extend(questions.prompts[number])
    (other,) = branch.fork(1)
    started = branch.generate(questions.params(number, greedy=greedy)), other.score(OPTIONS)
    branch.release()
    other.release()
    return started


def _answer(started: Started) -> Answer:
    generation, scoring = started
    completion, scores = generation.result(), scoring.result()
    return Answer(
        list(completion.token_ids),
        [each.logprob for each in completion.logprobs or ()],
        [number for each in scores for number in each.logprobs],
    )


def one_by_one(runtime: Runtime, questions: Questions, *, cold: bool = True) -> list[Answer]:
    """Each prompt alone, with an empty cache or with what the ones before have left."""
    answers = []
    for greedy in (True, False):
        for number in range(len(questions.prompts)):
            if cold:
                runtime.flush_cache()
            answers.append(_answer(_started(runtime, questions, number, greedy=greedy)))
    return answers


def together(runtime: Runtime, questions: Questions) -> list[Answer]:
    """All prompts at once."""
    answers = []
    for greedy in (True, False):
        runtime.flush_cache()
        answers += [
            _answer(each)
            for each in [
                _started(runtime, questions, number, greedy=greedy)
                for number in range(len(questions.prompts))
            ]
        ]
    return answers


def alone(model: LoadedModel, questions: Questions) -> list[Answer]:
    """The answers that all others are compared with."""
    with Runtime(model, seed=0, num_pages=16384) as runtime:
        return one_by_one(runtime, questions)


def warm(model: LoadedModel, questions: Questions) -> list[Answer]:
    """Alone, the second time."""
    with Runtime(model, seed=0, num_pages=16384) as runtime:
        one_by_one(runtime, questions, cold=False)
        return one_by_one(runtime, questions, cold=False)


def batch(model: LoadedModel, questions: Questions) -> list[Answer]:
    """All at once."""
    with Runtime(model, seed=0, num_pages=16384) as runtime:
        return together(runtime, questions)


def without_drafts(model: LoadedModel, questions: Questions) -> list[Answer]:
    """All at once, without prompt lookup."""
    with Runtime(model, seed=0, num_pages=16384, draft_tokens=0) as runtime:
        return together(runtime, questions)


def chunks(model: LoadedModel, questions: Questions) -> list[Answer]:
    """All at once, prompts in chunks, in small pages and another order."""
    with Runtime(
        model, seed=0, num_pages=4096, page_size=4, max_batch_tokens=23, order="fcfs"
    ) as runtime:
        return together(runtime, questions)


def small_pool(model: LoadedModel, questions: Questions) -> list[Answer]:
    """All at once in a pool that holds a few: they are preempted, evicted and computed again."""
    num_tokens = 128 + 6 * len(questions.prompts)
    with Runtime(model, seed=0, num_pages=num_tokens) as runtime:
        return together(runtime, questions)


def other_threads(model: LoadedModel, questions: Questions) -> list[Answer]:
    """All at once, on two threads, or on one where there were more."""
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    try:
        return batch(model, questions)
    finally:
        torch.set_num_threads(before)


def saved_prefix(model: LoadedModel, questions: Questions) -> list[Answer]:
    """All at once, the beginnings loaded from files that another runtime has written."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.prefix" for number in range(len(STEMS))]
        with Runtime(model, seed=0, num_pages=16384) as writer:
            for stem, path in zip(STEMS, paths, strict=True):
                save_prefix(writer, writer.encode(stem), path)
        with Runtime(model, seed=0, num_pages=16384) as runtime:
            for path in paths:
                load_prefix(runtime, path)
            return together(runtime, questions)


CONDITIONS: dict[str, Callable[[LoadedModel, Questions], list[Answer]]] = {
    "warm": warm,
    "batch": batch,
    "without drafts": without_drafts,
    "chunks": chunks,
    "small pool": small_pool,
    "other threads": other_threads,
    "saved prefix": saved_prefix,
}


def differing(found: Sequence[Answer], expected: Sequence[Answer]) -> tuple[int, int]:
    """Answers that have another text, and answers of which a bit of a number is another."""
    pairs = list(zip(found, expected, strict=True))
    texts = sum(a.token_ids != b.token_ids for a, b in pairs)
    return texts, sum((a.logprobs, a.scores) != (b.logprobs, b.scores) for a, b in pairs)


def on_set(isa: str, weights: str, questions: Questions) -> list[Answer]:
    """The answers alone, by a process on another instruction set. Run it in the checkout."""
    counts = ["--prompts", str(len(questions.prompts)), "--tokens", str(questions.num_tokens)]
    command = [
        sys.executable,
        "-m",
        "benchmarks.one_answer",
        "--answers",
        "--weights",
        weights,
        *counts,
    ]
    done = subprocess.run(
        command, env=os.environ | {VARIABLE: isa}, check=True, stdout=subprocess.PIPE, text=True
    )
    return [Answer(**each) for each in json.loads(done.stdout.splitlines()[-1])]


def _sets() -> list[str]:
    """Instruction sets of this machine below the one in use."""
    library = native_library()
    if library is None:
        return []
    return [isa for isa in isas(library.path.parent) if isa != library.isa()]


def compare(weights: str, questions: Questions, conditions: Sequence[str]) -> int:
    """Print a line a condition; returns the number of answers that differ."""
    model, wrong = load_model(quantization=WEIGHTS[weights]), 0
    expected = alone(model, questions)

    def report(name: str, found: list[Answer]) -> None:
        nonlocal wrong
        texts, numbers = differing(found, expected)
        wrong += texts + numbers
        print(f"| {weights} | {name} | {texts} | {numbers} | {len(expected)} |", flush=True)

    for name in conditions:
        if name in CONDITIONS:
            report(name, CONDITIONS[name](model, questions))
    for isa in _sets():
        if isa in conditions:
            report(f"alone, {isa}", on_set(isa, weights, questions))
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=["int8", "float32"])
    every = [*CONDITIONS, *_sets()]
    parser.add_argument("--condition", nargs="+", choices=every, default=every)
    parser.add_argument("--answers", action="store_true", help="print the answers alone as JSON")
    args = parser.parse_args()
    questions = Questions.of(args.prompts, args.tokens)
    if args.answers:
        found = alone(load_model(quantization=WEIGHTS[args.weights[0]]), questions)
        print(json.dumps([{name: getattr(each, name) for name in Answer.__slots__}
                          for each in found]))  # fmt: skip
        return
    print("| weights | condition | other texts | other numbers | of |\n|---|---|---|---|---|")
    wrong = sum(compare(weights, questions, args.condition) for weights in args.weights)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
