"""Decoders by the native library give one text, however the work for it is cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from radixlang import Runtime, SamplingParams
from radixlang.kernels.native.library import Library
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.process.native_library import native_library

PROMPTS = (
    "The oldest bridge in the town was built by hand. The first stone of it",
    "The oldest bridge in the town was built by hand. When the king died, his",
    "def total(values):\n    result = 0\n    for value in values:\n        result",
)
NUM_TOKENS = 24
Answer = tuple[list[int], list[float]]


@pytest.fixture(scope="module")
def library() -> Library:
    found = native_library()
    if found is None:
        pytest.skip("there is no C++ compiler, or RADIXLANG_NATIVE is empty")
    return found


def answers(runtime: Runtime, prompts: tuple[str, ...], seed: int | None) -> list[Answer]:
    """What follows each prompt, asked at once."""
    params = SamplingParams(
        temperature=0 if seed is None else 0.9, top_p=0.95, max_tokens=NUM_TOKENS,
        ignore_eos=True, logprobs=True, seed=seed,
    )  # fmt: skip
    started = []
    for prompt in prompts:
        branch = runtime.new_branch()
        branch.extend(prompt)
        started.append((branch, branch.generate(params)))
    found = [generation.result(600) for _, generation in started]
    for branch, _ in started:
        branch.release()
    return [(list(one.token_ids), [each.logprob for each in one.logprobs]) for one in found]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.model
@pytest.mark.parametrize("seed", [None, 7], ids=["greedy", "sampled"])
@pytest.mark.parametrize("quantization", ["int8", "file", None])
def test_one_answer_cold_warm_in_company_chunked_and_with_drafts(
    library: Library, threads: None, seed: int | None, quantization: str | None
) -> None:
    model = load_model(quantization=quantization)
    torch.set_num_threads(2)
    whole = Runtime(model, seed=0, num_pages=4096)
    alone: list[Answer] = []
    for prompt in PROMPTS:
        whole.flush_cache()
        alone += answers(whole, (prompt,), seed)
    assert answers(whole, PROMPTS[-1:], seed) == alone[-1:]  # warm
    assert answers(whole, PROMPTS[::-1], seed) == alone[::-1]
    whole.flush_cache()
    assert answers(whole, PROMPTS, seed) == alone
    whole.close()
    torch.set_num_threads(1)  # which an engine takes over when it starts
    chunked = Runtime(model, seed=0, num_pages=4096, draft_tokens=0, max_batch_tokens=7)
    assert answers(chunked, PROMPTS, seed) == alone
    chunked.close()
