"""Pressure, leaders, order and shares: what runs when memory or the step is too small for all."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from radixlang.errors import CancelledError, PoolExhaustedError
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60
MakeRuntime = Callable[..., Any]


def greedy(num_tokens: int = 8) -> SamplingParams:
    return SamplingParams(
        max_tokens=num_tokens, min_tokens=num_tokens, temperature=0.0, ignore_eos=True
    )


def ids(seed: int, num_tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 448, num_tokens).tolist()


def start(runtime: Any, prompt: list[int], params: SamplingParams, **kwargs: Any) -> Any:
    branch = runtime.new_branch(**kwargs)
    branch.extend(prompt)
    generation = branch.generate(params)
    branch.release()
    return generation


def tokens_of(generations: list[Any]) -> list[tuple[int, ...]]:
    return [generation.result(TIMEOUT).token_ids for generation in generations]


def nothing_is_held(runtime: Any) -> bool:
    runtime.flush_cache()
    stats = runtime.stats()
    return stats.num_pages_free == stats.num_pages_total and stats.num_running == 0


# ---- the ladder under pressure


def test_retracted_requests_resume_with_the_same_tokens(make_runtime: MakeRuntime) -> None:
    prompts = [ids(i, 20) for i in range(6)]
    expected = tokens_of([start(make_runtime(), p, greedy(40)) for p in prompts])
    small = make_runtime(num_pages=130)
    assert tokens_of([start(small, p, greedy(40)) for p in prompts]) == expected
    assert small.stats().num_retracted > 0
    assert nothing_is_held(small)


@pytest.mark.parametrize("page_size", [1, 4])
def test_seeded_samples_and_logprobs_survive_a_retract(
    make_runtime: MakeRuntime, page_size: int
) -> None:
    params = [
        SamplingParams(max_tokens=50, temperature=1.0, seed=i, ignore_eos=True, logprobs=True)
        for i in range(5)
    ]
    prompts = [ids(30 + i, 12) for i in range(5)]
    large, small = (
        make_runtime(page_size=page_size, num_pages=num // page_size) for num in (4096, 120)
    )
    for_all = [[start(r, p, q) for p, q in zip(prompts, params, strict=True)]
               for r in (large, small)]  # fmt: skip
    for wide, tight in zip(*for_all, strict=True):
        wide, tight = wide.result(TIMEOUT), tight.result(TIMEOUT)
        assert tight.token_ids == wide.token_ids
        np.testing.assert_allclose(
            [entry.logprob for entry in tight.logprobs],
            [entry.logprob for entry in wide.logprobs],
            atol=1e-4,
        )
        assert tight.usage.num_prompt_tokens == 12
    assert small.stats().num_retracted > 0
    assert small.stats().num_prompt_tokens == 60


def test_last_request_that_outgrows_the_pool_fails_alone(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=64)
    with pytest.raises(PoolExhaustedError, match=r"64 tokens cannot hold .*num_pages="):
        start(runtime, ids(1, 30), greedy(100)).result(TIMEOUT)
    assert len(start(runtime, ids(2, 30), greedy(10)).result(TIMEOUT).token_ids) == 10
    assert nothing_is_held(runtime)


def test_branches_at_rest_give_up_their_leases_under_pressure(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=128)
    branches = [runtime.new_branch() for _ in range(12)]
    first = []
    for index, branch in enumerate(branches):
        branch.extend(ids(index, 30))
        first.append(branch.generate(greedy(2)))
    tokens_of(first)
    for branch in branches:
        branch.extend(ids(77, 3))
    again = [branch.generate(greedy(4)) for branch in branches]
    assert all(len(tokens) == 4 for tokens in tokens_of(again))
    for branch in branches:
        branch.release()
    assert nothing_is_held(runtime)


def test_cached_prefixes_are_evicted_before_anybody_is_retracted(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=128)
    for index in range(10):
        start(runtime, ids(index, 40), greedy(4)).result(TIMEOUT)
    stats = runtime.stats()
    assert stats.num_evicted_tokens > 0
    assert stats.num_retracted == 0


@pytest.mark.parametrize(("num_tokens", "num_written"), [(1, 0), (4, 3)])
def test_no_slots_are_left_between_requests_for_tokens_that_cannot_come(
    make_runtime: MakeRuntime, num_tokens: int, num_written: int
) -> None:
    runtime = make_runtime()
    branches = [runtime.new_branch() for _ in range(8)]
    for index, branch in enumerate(branches):
        branch.extend(ids(index, 12))
    tokens_of([branch.generate(greedy(num_tokens)) for branch in branches])
    owned = runtime.core.call(runtime.core.memory.pool.owned_slots)
    assert owned.tolist() == list(range(8 * (12 + num_written)))
    for branch in branches:
        branch.release()
    assert nothing_is_held(runtime)


# ---- leaders


def test_waiting_prompts_follow_a_leader_and_wake_when_it_is_cancelled(
    make_runtime: MakeRuntime,
) -> None:
    runtime = make_runtime(max_batch_tokens=8)
    prefix = ids(3, 200)
    branches = [runtime.new_branch() for _ in range(5)]
    generations = []
    for index, branch in enumerate(branches):
        branch.extend(prefix + ids(100 + index, 4))
        generations.append(branch.generate(greedy(2)))
    generations[0].cancel()
    assert isinstance(generations[0].exception(TIMEOUT), CancelledError)
    assert len(tokens_of(generations[1:])) == 4
    # What the cancelled leader had committed was used, and nothing was computed twice.
    assert runtime.stats().num_computed_tokens <= 200 + 4 * 4 + 4
    for branch in branches:
        branch.release()


def test_prompt_that_is_a_prefix_of_a_running_one_waits_for_its_part(
    make_runtime: MakeRuntime,
) -> None:
    runtime = make_runtime(max_batch_tokens=16)
    long = ids(4, 120)
    generations = [start(runtime, long, greedy(2)), start(runtime, long[:50], greedy(2))]
    assert all(len(tokens) == 2 for tokens in tokens_of(generations))
    assert runtime.stats().num_computed_tokens <= 121


def test_forks_of_forks_compute_every_edge_once(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(max_batch_tokens=64, num_pages=8192)
    root = runtime.new_branch()
    root.extend(ids(5, 100))
    level = [root]
    for depth in range(3):
        children = [child for branch in level for child in branch.fork(3)]
        for index, child in enumerate(children):
            child.extend(ids(1000 * depth + index, 7))
        level = children
    prompts = [branch.tokens().result(TIMEOUT) for branch in level]
    tokens_of([branch.generate(greedy(1)) for branch in level])
    unique = {prompt[:end] for prompt in prompts for end in range(1, len(prompt) + 1)}
    assert runtime.stats().num_computed_tokens == len(unique)


# ---- a random life on a tiny pool


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("page_size", [1, 8])
def test_random_operations_on_a_tiny_pool_leave_nothing(
    make_runtime: MakeRuntime, seed: int, page_size: int
) -> None:
    """Generations, scores, forks, cancels and releases; the audit runs after every step."""
    choose = random.Random(seed)
    runtime = make_runtime(
        num_pages=160 // page_size, page_size=page_size, max_batch_tokens=choose.choice([6, 40]),
        max_running=choose.choice([2, 64]),
    )  # fmt: skip
    stems = [ids(i, 24) for i in range(3)]
    branches, futures = [], []
    for step in range(60):
        action = choose.choice(["new", "new", "fork", "generate", "score", "cancel", "release"])
        branch = choose.choice(branches) if branches else None
        if action == "new" or branch is None:
            branches.append(runtime.new_branch(namespace=choose.choice(["", "", "b"])))
            branches[-1].extend(choose.choice(stems)[: choose.randint(1, 24)])
        elif action == "fork":
            branches += branch.fork(choose.randint(0, 3))
        elif action == "generate":
            branch.extend(ids(choose.randint(0, 9), choose.randint(0, 4)))
            params = SamplingParams(max_tokens=choose.randint(1, 30), seed=step, stop=("th",))
            futures.append(branch.generate(params))
        elif action == "score":
            futures.append(branch.score(["the north", "the town", " a", ""]))
        elif action == "cancel" and futures:
            choose.choice(futures).cancel()
            branches.remove(branch)
            branch.cancel()
        else:
            branches.remove(branch)
            branch.release()
    for branch in branches:
        branch.release()
    for future in futures:
        assert future.exception(TIMEOUT) is None or future.exception(TIMEOUT)
    assert nothing_is_held(runtime)
    assert runtime.stats().num_branches == 0
