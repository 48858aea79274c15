"""Sequential Monte Carlo: expectations as by enumeration, resampling by forking, seeds."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

import pytest

import radixlang
from radixlang import (
    SMC,
    ProgramError,
    SamplingParams,
    SearchNode,
    SearchResult,
    State,
    gen,
    search,
)
from radixlang.testing import FakeBackend
from radixlang.tree_search.particles import normalised, systematic

LETTERS = "abc"
LENGTH = 3


def chances(prefix: str) -> dict[str, float]:
    """The toy model: a letter is likely to follow itself."""
    last = prefix[-1] if prefix else ""
    raw = {letter: 3.0 if letter == last else 1.0 + LETTERS.index(letter) for letter in LETTERS}
    return {letter: value / sum(raw.values()) for letter, value in raw.items()}


def letter(prompt: str, params: SamplingParams) -> str:
    prefix = prompt.removeprefix("word: ")
    weights = chances(prefix)
    drawn = random.Random(params.seed).choices(list(weights), list(weights.values()))
    return drawn[0]


def potential(word: str) -> float:
    """Log-potential: 'a' is wanted, and 'cc' must not occur."""
    return -math.inf if "cc" in word else 0.8 * word.count("a")


def exact() -> tuple[float, float]:
    """Mean share of 'a' under the target, and the logarithm of the normaliser."""
    words = ["".join(each) for each in itertools.product(LETTERS, repeat=LENGTH)]
    prior = {w: math.prod(chances(w[:i])[w[i]] for i in range(LENGTH)) for w in words}
    weight = {w: prior[w] * math.exp(potential(w)) for w in words}
    total = sum(weight.values())
    return sum(weight[w] * w.count("a") for w in words) / total / LENGTH, math.log(total)


def word_of(node: SearchNode) -> str:
    return "".join(each.values["x"] for each in node.path[1:])


def sampled(seed: int, policy: SMC, backend: Any = None) -> tuple[State, SearchResult]:
    kept: list[SearchResult] = []

    @radixlang.function
    def program(s: State) -> None:
        s += "word: "
        kept.append(search(
            s, gen("x"), lambda branch: potential(branch.text().removeprefix("word: ")),
            policy=policy, depth=LENGTH, budget=10_000,
        ))  # fmt: skip

    state = program.run(runtime=backend or FakeBackend(letter), seed=seed)
    state.text()
    return state, kept[0]


@pytest.mark.parametrize("resample_below", [0.0, 0.5, 1.0])
def test_expectations_are_within_two_standard_errors_of_enumeration(resample_below: float) -> None:
    mean, log_total = exact()
    means, totals = [], []
    for seed in range(30):
        _, result = sampled(seed, SMC(40, resample_below))
        means.append(result.mean(lambda node: word_of(node).count("a") / LENGTH))
        totals.append(math.exp(result.log_evidence or 0.0))
        assert sum(each.weight for each in result.particles) == pytest.approx(1.0)
        assert len(result.particles) == 40
        assert not any("cc" in word_of(each.node) for each in result.particles if each.weight)
    assert abs(fmean(means) - mean) < 2 * stdev(means) / math.sqrt(30)
    assert abs(fmean(totals) - math.exp(log_total)) < 2 * stdev(totals) / math.sqrt(30)


def test_the_state_goes_on_from_a_particle_drawn_by_weight() -> None:
    words = {sampled(seed, SMC(8))[0].text() for seed in range(6)}
    assert len(words) > 1
    state, result = sampled(3, SMC(8))
    assert state.text() == "word: " + word_of(result.best)
    assert sampled(3, SMC(8))[0].text() == state.text()


def test_resampling_forks_and_dead_particles_are_released() -> None:
    backend = FakeBackend(letter)
    most = 0

    def value(branch: State) -> float:
        nonlocal most
        most = max(most, backend.num_live_branches)
        return 2.0 * branch.text().count("a")

    @radixlang.function
    def program(s: State) -> Any:
        s += "word: "
        return search(
            s, gen("x"), value, policy=SMC(12, resample_below=1.0), depth=6, budget=100
        )  # fmt: skip

    state = program.run(runtime=backend, seed=2)
    result = state.result
    again = [node for node in result.nodes if len(node.children) > 1]
    assert again  # one particle became several branches
    pruned = [n for n in result.nodes if n.depth < 6 and not n.children]
    assert pruned  # and others none
    assert most < 12 * 3  # not the 72 branches of all levels
    assert state.text().startswith("word: ")
    backend.drain()
    del state, result
    assert backend.audit() == []


def test_when_all_particles_die_it_is_said() -> None:
    @radixlang.function
    def program(s: State) -> None:
        s += "word: "
        with pytest.raises(ProgramError, match="all 4 particles are dead after step 1"):
            search(s, gen("x"), lambda _: -math.inf, policy=SMC(4), depth=2)

    program.run(runtime=FakeBackend(letter), seed=1).text()


def test_a_budget_that_cannot_hold_a_step_is_refused() -> None:
    @radixlang.function
    def program(s: State) -> None:
        s += "word: "
        with pytest.raises(radixlang.ParameterError, match="at least n × depth"):
            search(s, gen("x"), lambda _: 0.0, policy=SMC(8), depth=2, budget=12)

    program.run(runtime=FakeBackend(letter), seed=1).text()


def test_systematic_resampling_copies_in_proportion() -> None:
    weights = normalised([math.log(each) for each in (1, 2, 5)] + [-math.inf])
    for offset in (0.0, 0.3, 0.999):
        picked = systematic(weights, 80, offset)
        assert [picked.count(index) for index in range(4)] == [
            pytest.approx(80 * weight, abs=1) for weight in weights
        ]
        assert picked == sorted(picked)


def test_a_log_probability_ratio_sharpens_a_model(make_runtime: Callable[..., Any]) -> None:
    """Target p(x)²: the potential is the log-probability itself."""
    runtime = make_runtime()
    found: list[SearchResult] = []

    @radixlang.function
    def program(s: State) -> None:
        s += "The theatre in the north"
        step = gen("x", max_tokens=1, min_tokens=1, ignore_eos=True, logprobs=True, heal=False)

        def total(branch: State) -> float:
            logprobs = branch.completion("x").logprobs or ()
            return sum(each.logprob for each in logprobs)

        found.append(search(s, step, total, policy=SMC(64, 0.0), depth=1))

    program.run(runtime=runtime, seed=4).text()

    @radixlang.function
    def exactly(s: State) -> Any:
        s += "The theatre in the north"
        return s.next_token(top=448)

    top = exactly.run(runtime=runtime).result
    squares = math.fsum(math.exp(2 * each) for each in top.logprobs)
    estimate = math.exp(found[0].log_evidence or 0.0)
    values = [math.exp(particle.node.value) for particle in found[0].particles]
    assert abs(estimate - squares) < 2 * stdev(values) / math.sqrt(len(values))
