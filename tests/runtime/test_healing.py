"""Healing: the cut between a prompt's text and a generation leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from radixlang.params import SamplingParams
from radixlang.protocol import Markup
from radixlang.runtime.healing import Healer

TIMEOUT = 60
MakeRuntime = Callable[..., Any]


def params(**more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, **more)


def test_candidates_begin_with_the_text_of_the_token(tiny_model: Any) -> None:
    tokenizer = tiny_model.tokenizer
    healer = Healer(tokenizer, tokenizer.vocab_size)
    for token_id in range(tokenizer.vocab_size):
        data = tokenizer.token_bytes(token_id)
        expected = {
            i
            for i in range(tokenizer.vocab_size)
            if i not in tokenizer.special_token_ids and tokenizer.token_bytes(i).startswith(data)
        }
        found = healer.unstable(token_id, 5)
        if token_id in tokenizer.special_token_ids or expected == {token_id}:
            assert found is None
        else:
            assert found is not None
            assert set(found.candidate_ids.tolist()) == expected
            assert found.num_bytes == len(data)


def healed(make_runtime: MakeRuntime) -> tuple[Any, list[str]]:
    """A runtime, and prompts after which its model prefers a longer last token."""
    runtime = make_runtime()
    prompts = [f"{stem} {cut}" for stem in ("the town", "Paris is", "0 1 2", "every night")
               for cut in ("th", "t", "n", "s", "ev", "pl", "in", "a")]  # fmt: skip
    changed = []
    for prompt in prompts:
        branch = runtime.new_branch()
        branch.extend(prompt)
        before = branch.tokens().result(TIMEOUT)
        branch.generate(params()).result(TIMEOUT)
        if branch.tokens().result(TIMEOUT)[: len(before)] != before:
            changed.append(prompt)
        branch.release()
    assert changed
    return runtime, changed


def test_healed_branch_reads_as_prompt_and_completion(make_runtime: MakeRuntime) -> None:
    runtime, prompts = healed(make_runtime)
    for prompt in prompts:
        branch = runtime.new_branch()
        branch.extend(prompt)
        generation = branch.generate(params())
        streamed = "".join(delta.text for delta in generation)
        completion = generation.result(TIMEOUT)
        tokens = branch.tokens().result(TIMEOUT)
        assert runtime.loaded.tokenizer.decode_bytes(tokens).startswith(prompt.encode())
        assert runtime.decode(tokens) == prompt + completion.text
        assert streamed == completion.text
        assert tokens[-len(completion.token_ids) :] == completion.token_ids
        assert len(completion.token_ids) == 6 == completion.usage.num_generated_tokens
        branch.release()


@pytest.mark.parametrize("max_batch_tokens", [1, 2, 3, 64])
def test_healing_is_the_same_in_chunks_cold_and_warm(
    make_runtime: MakeRuntime, max_batch_tokens: int
) -> None:
    runtime, prompts = healed(make_runtime)
    chunked = make_runtime(max_batch_tokens=max_batch_tokens)
    for prompt in prompts[:3]:
        results = []
        for each in (runtime, chunked, chunked):
            branch = each.new_branch()
            branch.extend(prompt)
            completion = branch.generate(params(logprobs=True)).result(TIMEOUT)
            assert len(completion.logprobs) == len(completion.token_ids)
            results.append((completion.text, branch.tokens().result(TIMEOUT)))
            branch.release()
        assert results[0] == results[1] == results[2]


def test_healing_can_be_switched_off(make_runtime: MakeRuntime) -> None:
    runtime, prompts = healed(make_runtime)
    branch = runtime.new_branch()
    branch.extend(prompts[0])
    before = branch.tokens().result(TIMEOUT)
    branch.generate(params(heal=False)).result(TIMEOUT)
    assert branch.tokens().result(TIMEOUT)[: len(before)] == before
    branch.release()


def test_markup_tokens_and_generated_tokens_are_exempt(make_runtime: MakeRuntime) -> None:
    runtime, prompts = healed(make_runtime)
    exact, template, after = (runtime.new_branch() for _ in range(3))
    exact.extend(runtime.encode(prompts[0]))
    template.extend(Markup(prompts[0]))
    after.extend("text")
    after.generate(params()).result(TIMEOUT)
    for branch in (exact, template, after):
        before = branch.tokens().result(TIMEOUT)
        branch.generate(params()).result(TIMEOUT)
        assert branch.tokens().result(TIMEOUT)[: len(before)] == before
        branch.release()


def test_forks_share_a_prompt_that_gets_healed(make_runtime: MakeRuntime) -> None:
    runtime, prompts = healed(make_runtime)
    runtime.flush_cache()
    root = runtime.new_branch()
    root.extend(prompts[0])
    children = root.fork(5)
    texts = {g.result(TIMEOUT).text for g in [child.generate(params()) for child in children]}
    assert len(texts) == 1
    for branch in (root, *children):
        branch.release()


def test_prompt_whose_end_is_remembered_is_healed_all_the_same(make_runtime: MakeRuntime) -> None:
    runtime, prompts = healed(make_runtime)
    for prompt in prompts[:3]:
        cold, unhealed, warm = (runtime.new_branch(namespace=name) for name in "abb")
        texts = []
        for branch, heal in ((cold, True), (unhealed, False), (warm, True)):
            branch.extend(prompt)
            texts.append(branch.generate(params(heal=heal)).result(TIMEOUT).text)
            branch.release()
        assert texts[0] == texts[2]
