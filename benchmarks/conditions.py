"""What a prompt's answer must not depend on: prompts, their answers, and the conditions.

An answer is what follows a prompt, greedily or by a seed, with its log-probabilities and those of
options after it. A condition answers all of them in its own way and counts those that differ from
the answers alone. It raises NotTestedError where what it is about did not take place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from radixlang import Runtime, SamplingParams, State, function, gen, select
from radixlang.protocol import Generation, OptionScore, Reply
from radixlang.records.replay import save_replay, verify_replay
from radixlang.runtime.models.model import LoadedModel
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


class NotTestedError(RuntimeError):
    """A condition did not take place, so it has shown nothing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What followed a prompt, the log-probabilities of its tokens, and those of the options."""

    token_ids: list[int]
    logprobs: list[float]
    scores: list[float]


@dataclass(frozen=True, slots=True)
class Differing:
    """Of some answers, those with another text, and those of which a bit of a number is another."""

    texts: int
    numbers: int
    answers: int

    @classmethod
    def of(cls, found: Sequence[Answer], expected: Sequence[Answer]) -> Differing:
        """Count them."""
        pairs = list(zip(found, expected, strict=True))
        texts = sum(a.token_ids != b.token_ids for a, b in pairs)
        numbers = sum((a.logprobs, a.scores) != (b.logprobs, b.scores) for a, b in pairs)
        return cls(texts, numbers, len(pairs))


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

    def options(self, number: int, *, greedy: bool) -> dict[str, Any]:
        """How a prompt is answered, as options of `gen` and of `SamplingParams`."""
        return {"temperature": 0 if greedy else 0.9, "top_p": 1.0 if greedy else 0.95,
                "seed": 1000 + number, "max_tokens": self.num_tokens, "ignore_eos": True,
                "logprobs": True}  # fmt: skip


Started = tuple[Generation, Reply[list[OptionScore]]]


def _started(runtime: Runtime, questions: Questions, number: int, *, greedy: bool) -> Started:
    branch = runtime.new_branch()
    branch.extend(questions.prompts[number])
    (other,) = branch.fork(1)
    params = SamplingParams(**questions.options(number, greedy=greedy))
    started = branch.generate(params), other.score(OPTIONS)
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


def together(runtime: Runtime, questions: Questions, *, cold: bool = True) -> list[Answer]:
    """All prompts at once."""
    answers = []
    for greedy in (True, False):
        if cold:
            runtime.flush_cache()
        numbers = range(len(questions.prompts))
        started = [_started(runtime, questions, number, greedy=greedy) for number in numbers]
        answers += list(map(_answer, started))
    return answers


def _happened(num: int, what: str) -> None:
    if not num:
        raise NotTestedError(f"{what}: it did not happen; ask more prompts or for more tokens")


# ---- the conditions: each compares with the answers alone

Condition = Callable[[LoadedModel, Questions, Sequence[Answer]], Differing]


def alone(model: LoadedModel, questions: Questions) -> list[Answer]:
    """The answers that all others are compared with."""
    with Runtime(model, seed=0, num_pages=16384) as runtime:
        return one_by_one(runtime, questions)


def alone_again(model: LoadedModel, questions: Questions, expected: Sequence[Answer]) -> Differing:
    """Alone once more: on another instruction set, by another process."""
    return Differing.of(alone(model, questions), expected)


def warm(model: LoadedModel, questions: Questions, expected: Sequence[Answer]) -> Differing:
    """Alone, the second time and the third."""
    with Runtime(model, seed=0, num_pages=16384) as runtime:
        one_by_one(runtime, questions, cold=False)
        again = [each for _ in range(2) for each in one_by_one(runtime, questions, cold=False)]
    return Differing.of(again, [*expected, *expected])


def batch(model: LoadedModel, questions: Questions, expected: Sequence[Answer]) -> Differing:
    """All at once."""
    with Runtime(model, seed=0, num_pages=16384) as runtime:
        return Differing.of(together(runtime, questions), expected)


def no_drafts(model: LoadedModel, questions: Questions, expected: Sequence[Answer]) -> Differing:
    """All at once, without prompt lookup."""
    with Runtime(model, seed=0, num_pages=16384, draft_tokens=0) as runtime:
        return Differing.of(together(runtime, questions), expected)


def chunks(model: LoadedModel, questions: Questions, expected: Sequence[Answer]) -> Differing:
    """All at once, prompts in chunks, in small pages and another order."""
    with Runtime(
        model, seed=0, num_pages=4096, page_size=4, max_batch_tokens=23, order="fcfs"
    ) as runtime:
        return Differing.of(together(runtime, questions), expected)


def small_pool(model: LoadedModel, questions: Questions, expected: Sequence[Answer]) -> Differing:
    """All at once in a pool that holds a few: they are preempted, evicted and computed again."""
    with Runtime(model, seed=0, num_pages=_few_tokens(model, questions)) as runtime:
        found = together(runtime, questions, cold=False)
        _happened(runtime.stats().num_evicted_tokens, "eviction")
        if len(questions.prompts) > 8:
            _happened(runtime.stats().num_retracted, "preemption")
    return Differing.of(found, expected)


def _few_tokens(model: LoadedModel, questions: Questions) -> int:
    """Room for the longest prompt and its answer, and for a few more tokens of each of the rest."""
    longest = max(len(model.tokenizer.encode(prompt)) for prompt in questions.prompts)
    return longest + questions.num_tokens + 64 + 5 * len(questions.prompts)


def compacted(model: LoadedModel, questions: Questions, expected: Sequence[Answer]) -> Differing:
    """One by one and all at once, while paths are moved together in a pool that is scattered."""
    with Runtime(model, seed=0, num_pages=2048) as runtime:
        compactor = runtime.core.upkeep.compactor
        assert compactor is not None
        compactor.every_inserts = 3  # as good as always
        apart = one_by_one(runtime, questions, cold=False)
        at_once = together(runtime, questions, cold=False)
        _happened(compactor.num_moved_tokens, "compaction")
    return Differing.of([*apart, *at_once], [*expected, *expected])


def other_threads(
    model: LoadedModel, questions: Questions, expected: Sequence[Answer]
) -> Differing:
    """All at once, on three threads and on two, or on one where there were as many."""
    before = torch.get_num_threads()
    found: list[Answer] = []
    try:
        for threads in (2 if before != 2 else 1, 3 if before != 3 else 1):
            torch.set_num_threads(threads)
            with Runtime(model, seed=0, num_pages=16384) as runtime:
                found += together(runtime, questions)
    finally:
        torch.set_num_threads(before)
    return Differing.of(found, [*expected, *expected])


def saved_prefix(model: LoadedModel, questions: Questions, expected: Sequence[Answer]) -> Differing:
    """All at once, the beginnings loaded from files that another runtime has written."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.prefix" for number in range(len(STEMS))]
        with Runtime(model, seed=0, num_pages=16384) as writer:
            for stem, path in zip(STEMS, paths, strict=True):
                save_prefix(writer, writer.encode(stem), path)
        with Runtime(model, seed=0, num_pages=16384) as runtime:
            for path in paths:
                load_prefix(runtime, path)
            return Differing.of(together(runtime, questions), expected)


def from_disk(model: LoadedModel, questions: Questions, expected: Sequence[Answer]) -> Differing:
    """All at once: in a small pool that evicts to disk, then by a runtime that reads it there."""
    with tempfile.TemporaryDirectory() as folder:
        with Runtime(
            model, seed=0, num_pages=_few_tokens(model, questions), disk=folder
        ) as runtime:
            found = together(runtime, questions, cold=False)
        with Runtime(model, seed=0, num_pages=16384, disk=folder) as runtime:
            _happened(_num_cached(runtime, questions), "reading from disk")
            found += together(runtime, questions)
    return Differing.of(found, [*expected, *expected])


def _num_cached(runtime: Runtime, questions: Questions) -> int:
    """Tokens that are found of the first prompt of each beginning, in a cache that is empty."""
    num_tokens = 0
    for number in range(min(len(STEMS), len(questions.prompts))):
        branch = runtime.new_branch()
        branch.extend(questions.prompts[number])
        params = SamplingParams(**questions.options(number, greedy=True))
        num_tokens += branch.generate(params).result().usage.num_cached_tokens
        branch.release()
    return num_tokens


def cold_nodes(model: LoadedModel, questions: Questions, _: Sequence[Answer]) -> Differing:
    """The beginnings set aside in 8 bits: at once and in chunks as one by one.

    Rounding changes numbers, so these are not compared with the answers alone.
    """
    rounds: list[list[Answer]] = []
    for more in ({}, {}, {"max_batch_tokens": 23, "draft_tokens": 0}):
        options: Any = more
        with Runtime(model, seed=0, num_pages=16384, cold_tokens=4096, **options) as runtime:
            _set_aside(runtime)
            ask = together if rounds else one_by_one
            rounds.append(ask(runtime, questions, cold=False))
    return Differing.of([*rounds[1], *rounds[2]], [*rounds[0], *rounds[0]])


def _set_aside(runtime: Runtime) -> None:
    """Compute the beginnings, and move them to 8 bits, as it happens to what is long idle."""
    once = SamplingParams(temperature=0, max_tokens=1, heal=False)
    for stem in STEMS:
        branch = runtime.new_branch()
        branch.extend(stem)
        branch.generate(once).result()
        branch.release()
    memory = runtime.core.memory

    def quantize() -> int:
        nodes = list(memory.tree.nodes())
        return sum(memory.cold.quantize(node) for node in nodes) if memory.cold else 0

    _happened(runtime.core.call(quantize), "setting aside")


@function
def answered(s: State, prompt: str, options: dict[str, Any]) -> None:
    """A program as a replay file holds it."""
    s += prompt + gen("answer", **options)
    s += select("end", list(OPTIONS))


def replays(model: LoadedModel, questions: Questions, _: Sequence[Answer]) -> Differing:
    """Runs saved one by one, with an empty cache, replay the same at once and in a small pool."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        with Runtime(model, seed=0, num_pages=16384) as runtime:
            for greedy in (True, False):
                for number, prompt in enumerate(questions.prompts):
                    runtime.flush_cache()
                    options = questions.options(number, greedy=greedy)
                    state = answered.run(prompt, options, runtime=runtime)
                    paths.append(Path(folder) / f"{number}-{greedy}.json")
                    save_replay(state, paths[-1])
        with (
            Runtime(model, seed=1, num_pages=_few_tokens(model, questions)) as runtime,
            ThreadPoolExecutor(16) as pool,
        ):
            verified = pool.map(
                lambda path: verify_replay(answered, path, runtime=runtime).difference, paths
            )
            return Differing(sum(each is not None for each in verified), 0, len(paths))


CONDITIONS: dict[str, Condition] = {
    "warm": warm,
    "batch": batch,
    "without drafts": no_drafts,
    "chunks": chunks,
    "small pool": small_pool,
    "compaction": compacted,
    "other threads": other_threads,
    "saved prefix": saved_prefix,
    "from disk": from_disk,
    "cold nodes": cold_nodes,
    "replays": replays,
}
