"""Greedy generations equal those of transformers' `generate` on the same weights.

All prompts have the same number of tokens, so that transformers can take them as one batch
without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams

pytestmark = pytest.mark.model

NUM_TOKENS = 64
PROMPT_TOKENS = 10
NUM_ALONE = 16  # of each prompt alone: a step of one branch takes nearly as long as one of twenty
TIMEOUT = 300
TEXTS = [
    "The capital of France is a city that has been known since Roman times for",
    "Once upon a time, in a small village by the sea, there lived a fisherman who",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number, counted from zero."""\n',
    "Water boils at a lower temperature on a high mountain because the pressure of the air",
    "To bake a loaf of bread you need flour, water, salt and yeast. First of all you",
    "In the year 1969 the first human beings landed on the Moon, and when they came",
    "The difference between a list and a tuple in Python is that a list can be",
    "Dear Sir or Madam, I am writing to you because I would like to ask about",
    "SELECT name, count(*) FROM orders WHERE year = 2023 GROUP BY name ORDER BY count",
    "Photosynthesis is the process by which green plants and some other organisms turn light",
    "The three laws of thermodynamics can be stated in simple words in the following way: you",
    "A good night's sleep matters because the brain uses the time to sort what it has",
    "When the old clock in the hall struck midnight, the door of the library opened and",
    "Question: how many legs does a spider have? Answer: a spider has eight legs. Question:",
    "The history of the printing press begins in the fifteenth century, when a goldsmith from",
    "If x plus three equals ten, then x must be seven, since seven plus three is",
    "My favourite season is autumn, when the leaves turn red and yellow and the air is",
    "The recipe for happiness, my grandmother used to say, has only three ingredients: work, love",
    "Machine learning models are trained on large amounts of data so that they can find",
    "Der Zug nach Berlin hatte eine halbe Stunde Verspätung, weil auf der Strecke ein Baum lag",
]


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def case(
    request: pytest.FixtureRequest, transformers_from_gguf: Callable[[Path], Any]
) -> Iterator[tuple[Runtime, list[list[int]], list[tuple[int, ...]]]]:
    """A runtime on a real model, the prompts, and what transformers generates."""
    path = request.getfixturevalue(f"{request.param}_path")
    runtime = Runtime(path, device="cpu", quantization=None, num_pages=8192)
    bos = [runtime.loaded.tokenizer.bos_token_id]
    start = [] if bos == [None] else bos
    prompts = [(start + runtime.encode(text))[:PROMPT_TOKENS] for text in TEXTS]
    yield runtime, prompts, _generate(transformers_from_gguf(path), prompts)
    violations = runtime.audit()
    runtime.close()
    assert violations == []


def _generate(model: Any, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    ids = torch.tensor(prompts)
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    return [tuple(row) for row in out[:, PROMPT_TOKENS:].tolist()]


def _run(
    runtime: Runtime, prompts: list[list[int]], num_tokens: int = NUM_TOKENS
) -> list[tuple[int, ...]]:
    """All prompts at once, each on a branch of its own."""
    greedy = SamplingParams(
        max_tokens=num_tokens, min_tokens=num_tokens, temperature=0.0, ignore_eos=True, heal=False
    )
    branches = [runtime.new_branch() for _ in prompts]
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.extend(prompt)
    generations = [branch.generate(greedy) for branch in branches]
    results = [generation.result(TIMEOUT).token_ids for generation in generations]
    for branch in branches:
        branch.release()
    return results


def test_batched_greedy_tokens_equal_transformers_cold_and_warm(case: Any) -> None:
    runtime, prompts, expected = case
    runtime.flush_cache()
    assert _run(runtime, prompts) == expected
    before = runtime.stats().num_computed_tokens
    assert _run(runtime, prompts) == expected
    assert runtime.stats().num_computed_tokens == before  # all of it came from the cache


@pytest.mark.parametrize("case", ["smollm2"], indirect=True)  # the quicker model
def test_every_prompt_alone_begins_as_transformers_does(case: Any) -> None:
    runtime, prompts, expected = case
    runtime.flush_cache()
    for prompt, tokens in zip(prompts, expected, strict=True):
        assert _run(runtime, [prompt], NUM_ALONE) == [tokens[:NUM_ALONE]]


def test_single_greedy_tokens_equal_transformers_cold_and_warm(case: Any) -> None:
    runtime, prompts, expected = case
    runtime.flush_cache()
    for _ in ("cold", "warm"):
        assert _run(runtime, prompts[:1]) == expected[:1]
