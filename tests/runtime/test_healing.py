"""Healing: the cut between a prompt's text and a generation leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from radixlang.constraints.specs import Choices, Grammar, JsonSchema, Regex, match
from radixlang.errors import IncompleteError
from radixlang.protocol import Markup
from radixlang.runtime.text.token_healing import Healer
from radixlang.sampling_params import SamplingParams

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


SPECS = (
    Regex("[a-z]{2,9}( [a-z]{2,9}){0,3}"),
    Regex("[eio].{3,9}"),
    Choices(("he", "her", "own", "very night", "is")),
    JsonSchema.of({"type": "integer", "maximum": 9999}, finish="close"),
    Grammar('start: WORD (" " WORD)*\nWORD: /[a-z]+/'),
)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_candidates_under_a_constraint_go_on_as_its_text_may_begin(
    make_runtime: MakeRuntime, spec: Any
) -> None:
    runtime = make_runtime()
    tokenizer, constraint = runtime.loaded.tokenizer, runtime.compile_constraint(spec)
    healer, num_found = Healer(tokenizer, tokenizer.vocab_size), 0
    texts = {i: data.decode() for i in range(tokenizer.vocab_size)
             if i not in tokenizer.special_token_ids
             and (data := tokenizer.token_bytes(i)).isascii()}  # fmt: skip
    for token_id, text in texts.items():
        expected = {
            i for i, longer in texts.items() if longer.startswith(text)
            and match(spec, longer[len(text) :]).status != "rejected"
        }  # fmt: skip
        found = healer.unstable(token_id, 5, constraint)
        ids = {token_id} if found is None else set(found.candidate_ids.tolist())
        assert ids & set(texts) == expected
        num_found += found is not None
    assert num_found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_healed_prompt_and_a_constrained_text_are_whole(
    make_runtime: MakeRuntime, temperature: float
) -> None:
    runtime = make_runtime()
    healed: set[str] = set()
    for spec in SPECS:
        constraint = runtime.compile_constraint(spec)
        for seed, prompt in enumerate(("the town ", "Paris i", "every n", "0 1 t", "the t")):
            branch = runtime.new_branch()
            branch.extend(prompt)
            before = branch.tokens().result(TIMEOUT)
            given = SamplingParams(max_tokens=40, temperature=temperature, seed=seed, logprobs=True)
            generation = branch.generate(given, constraint)
            streamed = "".join(delta.text for delta in generation)
            done = generation.result(TIMEOUT)
            tokens = branch.tokens().result(TIMEOUT)
            assert match(spec, done.text)
            assert streamed == done.text
            assert runtime.decode(tokens) == prompt + done.text
            assert len(done.logprobs) == len(done.token_ids)
            if tokens[: len(before)] != before:
                healed.add(type(spec).__name__)
            branch.release()
    assert len(healed) >= 3


def test_the_healed_token_is_the_likeliest_of_those_that_may_stand(
    make_runtime: MakeRuntime,
) -> None:
    """The model may prefer a token after which the constrained text cannot go on."""
    runtime, num_ruled_out = make_runtime(), 0
    tokenizer = runtime.loaded.tokenizer
    healer = Healer(tokenizer, tokenizer.vocab_size)
    constraint = runtime.compile_constraint(Regex("[eo][a-z ]{40}"))
    for prompt in ("the town ", "every night t", "Paris is t", "0 1 2 t", "the north t"):
        branch, probe = runtime.new_branch(), runtime.new_branch()
        branch.extend(prompt)
        *before, last = branch.tokens().result(TIMEOUT)
        probe.extend(before)
        given = params(top_logprobs=100, heal=False)
        likely = [i for i, _ in probe.generate(given).result(TIMEOUT).logprobs[0].top]
        legal, free = healer.unstable(last, 0, constraint), healer.unstable(last, 0)
        ranked = [i for i in likely if i in legal.candidate_ids]
        num_ruled_out += next(i for i in likely if i in free.candidate_ids) != ranked[0]
        with pytest.raises(IncompleteError) as raised:
            branch.generate(params(), constraint).result(TIMEOUT)
        assert (
            (prompt + raised.value.partial)
            .encode()
            .startswith(tokenizer.decode_bytes([*before, ranked[0]]))
        )
        branch.release()
        probe.release()
    assert num_ruled_out


def test_a_constraint_that_a_healed_token_fails_harms_no_other(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    constraint = runtime.compile_constraint(Regex("[a-z ]{40}"))
    branches = [runtime.new_branch() for _ in range(8)]
    running = []
    for i, branch in enumerate(branches):
        branch.extend(f"{i} the town ")
        given = SamplingParams(max_tokens=1 if i % 2 else 30, temperature=0.0, ignore_eos=True)
        running.append(branch.generate(given, constraint if i % 2 else None))
    for i, generation in enumerate(running):
        if i % 2:
            assert isinstance(generation.exception(TIMEOUT), IncompleteError)
        else:
            assert len(generation.result(TIMEOUT).token_ids) == 30
    for branch in branches:
        branch.release()
    assert runtime.audit() == []
