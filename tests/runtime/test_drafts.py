"""Guessing ahead: the same tokens in fewer steps, and nothing left behind by wrong guesses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlang.constraints.specs import JsonSchema
from radixlang.errors import ParameterError
from radixlang.runtime.speculative import prompt_lookup
from radixlang.runtime.speculative.draft_length import choose_lengths
from radixlang.runtime.speculative.drafts import NO_DRAFT
from radixlang.runtime.speculative.ngram_cache import MAX_NGRAMS, NgramCache, NgramText
from radixlang.runtime.speculative.prompt_lookup import (
    MAX_MATCH,
    MIN_MATCH,
    LookupDrafter,
    lookup,
)
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60
MakeRuntime = Callable[..., Any]


def ids(*tokens: int) -> Any:
    return np.array(tokens, np.int32)


# ---- the lookup


def test_what_followed_the_last_tokens_before_is_the_draft() -> None:
    assert lookup(ids(1, 2, 3, 4, 5, 9, 1, 2), 3).tolist() == [3, 4, 5]


def test_the_longest_match_counts_then_the_latest() -> None:
    longest = ids(7, 1, 2, 50, 8, 1, 2, 60, 7, 1, 2)
    assert lookup(longest, 1).tolist() == [50]
    latest = ids(1, 2, 50, 1, 2, 60, 1, 2)
    assert lookup(latest, 1).tolist() == [60]


def test_a_repetition_goes_on_round_and_round() -> None:
    assert lookup(ids(5, 6, 5, 6), 5).tolist() == [5, 6, 5, 6, 5]
    assert lookup(ids(1, 4, 4, 4), 3).tolist() == [4, 4, 4]


@pytest.mark.parametrize("tokens", [(1,), (1, 1), (1, 2, 3), (9, 2, 8, 2)])
def test_too_little_in_common_gives_no_draft(tokens: tuple[int, ...]) -> None:
    assert lookup(ids(*tokens), 4).tolist() == []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 6))
def test_a_draft_continues_a_real_match(tokens: list[int], count: int) -> None:
    draft = lookup(ids(*tokens), count).tolist()
    ends = [
        end
        for end in range(MIN_MATCH, len(tokens))
        if tokens[end - MIN_MATCH : end] == tokens[-MIN_MATCH:]
    ]
    assert bool(draft) == bool(ends)
    if draft:
        assert len(draft) == count

        def common(end: int) -> int:
            same = [tokens[end - n : end] == tokens[-n:] for n in range(1, min(end, MAX_MATCH) + 1)]
            return [*same, False].index(False)

        best = max(ends, key=lambda end: (common(end), end))
        whole = tokens[best:]
        assert draft == [whole[i % len(whole)] for i in range(count)]


# ---- what others have written


def drafter_of(cache: NgramCache, namespace: str = "") -> LookupDrafter:
    return LookupDrafter(8, NgramText(cache, namespace))


def test_what_another_has_written_is_a_draft_too() -> None:
    cache = NgramCache()
    first, other, stranger = drafter_of(cache), drafter_of(cache), drafter_of(cache, "elsewhere")
    text = [1, 2, 3]
    for token in (4, 5, 6, 7, 8):
        assert first.propose(ids(*text)).tolist() == []
        text.append(token)
    assert other.propose(ids(9, 2, 3, 4)).tolist() == [5, 6, 7]  # its last is not known yet
    assert other.propose(ids(9, 3, 4, 5, 3, 4)).tolist() == [5, 3, 4] * 2 + [5, 3]  # its own first
    assert stranger.propose(ids(9, 2, 3, 4)).tolist() == []
    assert drafter_of(cache).propose(ids(1)).tolist() == []
    cache.clear()
    assert other.propose(ids(9, 2, 3, 4)).tolist() == []


def test_the_oldest_ngrams_are_forgotten() -> None:
    cache, text = NgramCache(), list(range(20_000))
    writing = NgramText(cache, "")
    writing.extend(ids(*text[:10]))
    assert len(cache) == 0
    writing.extend(ids(*text))
    assert len(cache) == MAX_NGRAMS
    assert writing.guess(ids(8, 9, 10), 2).tolist() == []
    assert writing.guess(ids(19_990, 19_991, 19_992), 2).tolist() == [19_993, 19_994]


# ---- how many


def test_wrong_guesses_make_drafts_shorter_until_there_are_none() -> None:
    drafter, lengths = drafter_of(NgramCache()), []
    while not lengths or lengths[-1]:
        lengths += choose_lengths([drafter.rate], 8)
        drafter.learn(lengths[-1], 0)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 1
    assert len(lengths) < 12


def test_a_drafter_that_gave_up_sees_when_its_guesses_come_true() -> None:
    drafter, text = drafter_of(NgramCache()), [1, 2, 3] * 4
    for _ in range(30):
        drafter.learn(8, 0)
    lengths = []
    while not lengths or not lengths[-1]:
        assert drafter.propose(ids(*text)).tolist() == [*text[-3:], *text[-3:], *text[-3:-1]]
        lengths += choose_lengths([drafter.rate], 8)
        text.append(text[-3])
    assert lengths[0] == 0
    assert len(lengths) < 6


def test_right_guesses_make_drafts_as_long_as_allowed() -> None:
    drafter = drafter_of(NgramCache())
    for _ in range(8):
        drafter.learn(8, 8)
    assert choose_lengths([drafter.rate], 8) == [8]


def test_a_draft_must_be_better_the_more_generations_wait_for_it() -> None:
    least = []
    for num in (1, 2, 8, 32, 128):
        rates = [rate / 100 for rate in range(100)]
        least.append(next(rate for rate in rates if any(choose_lengths([rate] * num, 8))))
    assert least == sorted(least)
    assert 0.1 < least[0] < least[-1] < 0.9


def test_one_good_guess_among_many_generations_is_left_alone() -> None:
    alone = choose_lengths([0.9], 8)
    assert choose_lengths([0.9] + [0.0] * 31, 8) == [0] * 32
    assert alone[0] > 4
    among_two = choose_lengths([0.9, 0.0], 8)
    assert 0 < among_two[0] <= alone[0]
    assert among_two[1] == 0


def test_a_step_that_is_ragged_anyway_is_quicker_to_draft() -> None:
    rates = [0.5] * 16
    assert not any(choose_lengths(rates, 8))
    assert all(choose_lengths(rates, 8, is_ragged=True))


@given(st.lists(st.floats(0, 0.99), min_size=1, max_size=40), st.integers(1, 12))
def test_lengths_follow_the_rates(rates: list[float], most: int) -> None:
    lengths = choose_lengths(rates, most)
    assert len(lengths) == len(rates)
    assert all(0 <= length <= most for length in lengths)
    ranked = [length for _, length in sorted(zip(rates, lengths, strict=True))]
    assert ranked == sorted(ranked)
    assert all(length == 0 for rate, length in zip(rates, lengths, strict=True) if rate == 0)


# ---- in the engine


PARAMS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.7, "seed": 3},
    "top_p": {"temperature": 1.0, "top_p": 0.8, "seed": 4},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    "min_tokens": {"temperature": 0.9, "seed": 5, "min_tokens": 20},
    "stop_token": {"temperature": 0.9, "seed": 6, "stop_token_ids": tuple(range(100, 140))},
}


def prompts() -> list[list[int]]:
    """Prompts that begin alike."""
    rng = np.random.default_rng(0)
    phrase = rng.integers(3, 448, 40).tolist()
    return [phrase + rng.integers(3, 448, 5).tolist() for _ in range(3)]


def outcomes(runtime: Any, params: SamplingParams, constraint: Any = None) -> list[Any]:
    branches = [runtime.new_branch() for _ in prompts()]
    for branch, prompt in zip(branches, prompts(), strict=True):
        branch.extend(prompt)
    if constraint is not None:
        constraint = runtime.compile_constraint(constraint)
    generations = [branch.generate(params, constraint=constraint) for branch in branches]
    results = [each.result(TIMEOUT) for each in generations]
    for branch, generation, done in zip(branches, generations, results, strict=True):
        assert "".join(delta.text for delta in generation) == done.text
        branch.release()
    return results


def foresee(
    monkeypatch: pytest.MonkeyPatch, texts: list[list[int]], *, wrong_in: int | None = None
) -> None:
    """Let drafts be what will come, but for every `wrong_in`-th token."""

    def guess(tokens: Any, count: int) -> Any:
        at = len(tokens)
        for text in texts:
            if text[:at] == tokens.tolist():
                coming = enumerate(text[at : at + count], at)
                return ids(*(t + 1 if wrong_in and not i % wrong_in else t for i, t in coming))
        return NO_DRAFT

    monkeypatch.setattr(prompt_lookup, "lookup", guess)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("kind", PARAMS)
def test_drafts_change_no_token(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch, kind: str, page_size: int
) -> None:
    params = SamplingParams(max_tokens=48, logprobs=True, top_logprobs=2, **PARAMS[kind])
    plain = make_runtime(draft_tokens=0, page_size=page_size)
    guessing = make_runtime(draft_tokens=6, page_size=page_size)
    right = outcomes(plain, params)
    whole = [[*prompt, *done.token_ids] for prompt, done in zip(prompts(), right, strict=True)]
    foresee(monkeypatch, whole, wrong_in=5)
    for expected, found in zip(right, outcomes(guessing, params), strict=True):
        assert found.token_ids == expected.token_ids
        assert found.text == expected.text
        assert found.finish_reason == expected.finish_reason
        assert found.usage.num_generated_tokens == expected.usage.num_generated_tokens
        for a, b in zip(found.logprobs, expected.logprobs, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
    assert plain.stats().num_draft_tokens == 0
    assert 0 < guessing.stats().num_accepted_draft_tokens < guessing.stats().num_draft_tokens
    assert guessing.audit() == []
    assert guessing.flush_cache() > 0
    assert guessing.stats().num_pages_free == guessing.stats().num_pages_total


FIELDS = {
    "kind": {"enum": ["guide", "note"]},
    "stars": {"type": "integer", "minimum": 1, "maximum": 500},
    "draft": {"type": "boolean"},
}
SCHEMA = {
    "type": "object",
    "properties": FIELDS,
    "required": list(FIELDS),
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, Any] = {
    "forced": "(one|two|three) and then (one|two|three), which is [a-d]{3,9}\\.",
    "free": "[a-z ]{20,40}",
    "json": JsonSchema.of(SCHEMA, whitespace=1),
}


@pytest.mark.parametrize("wrong_in", [None, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_drafts_change_no_token_under_a_constraint(
    make_runtime: MakeRuntime,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    temperature: float,
    wrong_in: int | None,
) -> None:
    params = SamplingParams(max_tokens=120, temperature=temperature, seed=2)
    plain, guessing = make_runtime(draft_tokens=0), make_runtime(draft_tokens=6)
    right = outcomes(plain, params, CONSTRAINTS[kind])
    assert {done.finish_reason for done in right} <= {"constraint", "eos"}
    whole = [[*prompt, *done.token_ids] for prompt, done in zip(prompts(), right, strict=True)]
    foresee(monkeypatch, whole, wrong_in=wrong_in)
    for expected, found in zip(right, outcomes(guessing, params, CONSTRAINTS[kind]), strict=True):
        assert found.token_ids == expected.token_ids
        assert found.text == expected.text
        assert found.finish_reason == expected.finish_reason
        assert found.stop_reason == expected.stop_reason
        assert found.usage.num_forced_tokens == expected.usage.num_forced_tokens
    assert guessing.stats().num_accepted_draft_tokens > 0
    assert guessing.stats().num_steps < plain.stats().num_steps
    assert guessing.audit() == []
    assert guessing.flush_cache() > 0
    assert guessing.stats().num_pages_free == guessing.stats().num_pages_total


def test_tokens_that_were_foreseen_take_no_step_of_their_own(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, steps = list(range(20, 40)), {}
    params = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
    for most in (0, 8):
        runtime = make_runtime(draft_tokens=most, debug=False)
        branch = runtime.new_branch()
        branch.extend(prompt)
        done = branch.generate(params).result(TIMEOUT)
        steps[most] = runtime.stats().num_steps
        assert steps[most] + runtime.stats().num_accepted_draft_tokens == 200
        foresee(monkeypatch, [[*prompt, *done.token_ids]])
    assert steps[0] == 200
    assert steps[8] < 30


def test_a_branch_goes_on_from_tokens_that_were_guessed(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[list[Any]] = []
    for most in (0, 8):
        runtime = make_runtime(draft_tokens=most)
        branch = runtime.new_branch()
        branch.extend([5, 6, 7, 8] * 8)
        params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
        first = branch.generate(params).result(TIMEOUT)
        children = branch.fork(2)
        for child, extra in zip(children, ([9, 10], [11]), strict=True):
            child.extend(extra)
        rest = [child.generate(params).result(TIMEOUT) for child in children]
        texts.append([first.token_ids, *(each.token_ids for each in rest)])
        assert runtime.audit() == []
        foresee(monkeypatch, [[5, 6, 7, 8] * 8 + list(first.token_ids)], wrong_in=4)
    assert texts[0] == texts[1]


def test_a_pool_without_room_ahead_goes_token_by_token(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(draft_tokens=8, num_pages=96)
    branch = runtime.new_branch()
    branch.extend([5, 6, 7, 8] * 5)
    params = SamplingParams(max_tokens=76, temperature=0.0, ignore_eos=True)
    assert len(branch.generate(params).result(TIMEOUT).token_ids) == 76
    assert runtime.audit() == []


@pytest.mark.parametrize("bad", [-1, 2.5, "8"])
def test_a_wrong_number_of_draft_tokens_is_refused(make_runtime: MakeRuntime, bad: Any) -> None:
    with pytest.raises(ParameterError, match="draft_tokens must be 0 or more"):
        make_runtime(draft_tokens=bad)


def test_deterministic_runtimes_draft_where_that_leaves_the_bits(
    make_runtime: MakeRuntime, tiny_model: Any
) -> None:
    assert make_runtime(deterministic=True).core.branches.drafts.most == 8

    class Varying:
        """A model whose rows depend on their company."""

        batch_invariant = False

        def __getattr__(self, name: str) -> Any:
            return getattr(tiny_model.model, name)

    varying = dataclasses.replace(tiny_model, model=Varying())
    runtime = make_runtime(varying, deterministic=True)
    assert runtime.core.branches.drafts.most == 0
    with pytest.raises(ParameterError, match="draft_tokens=4 drafts tokens"):
        make_runtime(varying, deterministic=True, draft_tokens=4)
