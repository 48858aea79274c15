"""Values that generate: of all siblings in one batch, and nothing of them stays."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

import pytest

import radixlang
from radixlang import (
    MCTS,
    SMC,
    Beam,
    BestFirst,
    ProgramError,
    RequestError,
    SamplingParams,
    SearchResult,
    State,
    gen,
    search,
)
from radixlang.testing import FakeBackend
from tests.tree_search.test_particles import LENGTH, LETTERS, chances, exact, letter, word_of

STEP = "\nThought:" + gen("x", max_tokens=3, min_tokens=3, ignore_eos=True)
JUDGED: dict[str, Any] = {"max_tokens": 6, "min_tokens": 6, "ignore_eos": True}


def judged(branch: State) -> State:
    judge = branch.copy()
    judge += "\nScore:" + gen("score", **JUDGED)
    return judge


def worth(text: str) -> float:
    return float(sum(map(ord, text)) % 97)


async def together(branch: State) -> float:
    return worth(await judged(branch).aget("score"))


def one_by_one(branch: State) -> float:
    return worth(judged(branch)["score"])


def searched(runtime: Any, value: Any, policy: Any, **options: Any) -> tuple[State, SearchResult]:
    kept: list[SearchResult] = []

    @radixlang.function
    def program(s: State) -> None:
        s += "The theatre in the north"
        kept.append(search(s, STEP, value, policy=policy, **{"depth": 2, **options}))
        s += "."

    state = program.run(runtime=runtime, seed=3)
    state.text()
    return state, kept[0]


@pytest.mark.parametrize(
    "policy", [Beam(2, 4), BestFirst(4, parallel=2), MCTS(4, parallel=3), SMC(4, 0.0)]
)
def test_values_of_siblings_are_one_batch_with_the_same_results(
    make_runtime: Callable[..., Any], policy: Any
) -> None:
    runtime = make_runtime(draft_tokens=0)
    found, steps = [], []
    for value in (one_by_one, together):
        runtime.flush_cache()
        runtime.reset_stats()
        options = {"budget": 12} if not isinstance(policy, (Beam, SMC)) else {}
        state, result = searched(runtime, value, policy, **options)
        found.append((state.text(), [(node.values, node.value) for node in result.nodes]))
        steps.append(runtime.stats().num_steps)
        del state, result
    assert found[0] == found[1]
    assert steps[1] < steps[0]


def test_judged_branches_end_with_their_values(make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    lives: list[int] = []

    @radixlang.function
    def program(s: State) -> None:
        s += "The theatre in the north"
        tree = radixlang.SearchTree(s, STEP, together)
        tree.grow([tree.root] * 5)
        s.next_token()  # the engine has seen the releases before
        lives.append(runtime.stats().num_branches)
        tree.close()

    program.run(runtime=runtime, seed=1).text()
    assert lives == [6]  # the program's own and its five children


def test_an_error_of_a_value_is_its_nodes_alone() -> None:
    def answer(prompt: str, params: SamplingParams) -> str | BaseException:
        if prompt.endswith("Score:"):
            return RequestError("the judge is ill") if "b" in prompt else "7"
        return "abc"[(params.seed or 0) % 3]

    backend = FakeBackend(answer)
    _, result = searched(backend, together, Beam(3, 6), depth=1)
    failed = {node.values["x"] for node in result.nodes if node.error is not None}
    assert failed == {"b"}
    assert all("judge is ill" in str(node.error) for node in result.nodes if node.error)
    assert result.best.values["x"] in "ac"


@pytest.mark.parametrize("seconds", [None, 0])
def test_a_mistake_of_the_function_ends_the_search(seconds: float | None) -> None:
    async def value(branch: State) -> float:
        await asyncio.sleep(seconds or 0)
        raise ZeroDivisionError("a mistake")

    backend = FakeBackend(letter)

    @radixlang.function
    def program(s: State) -> None:
        s += "word: "
        with pytest.raises(ZeroDivisionError, match="a mistake"):
            search(s, gen("x"), value)
        s += "free"

    assert program.run(runtime=backend, seed=1).text() == "word: free"
    assert backend.audit() == []


def test_a_search_on_a_thread_with_an_event_loop() -> None:
    async def value(branch: State) -> float:
        await asyncio.sleep(0)
        return float(branch["x"] == "c")

    @radixlang.function
    def program(s: State) -> Any:
        s += "word: "
        return search(s, gen("x"), value, policy=Beam(2, 6), depth=1).best.value

    async def notebook() -> Any:
        return program.run(runtime=FakeBackend(letter), seed=1).result

    assert asyncio.run(notebook()) == 1.0


# ---- particles


@radixlang.function
async def scorer(s: State) -> Any:
    """A program that scores a word: by the number that is generated after it."""
    s += "\nscore: " + gen("n", float)
    return await s.aget("n")


async def by_program(branch: State) -> float:
    score: float = (await branch.copy().acall(scorer)).result
    return score


def scored_letter(prompt: str, params: SamplingParams) -> str:
    """The toy model; asked for a score it likes every 'a', and hates 'cc'."""
    word, asked, _ = prompt.removeprefix("word: ").partition("\n")
    if not asked:
        return letter(prompt, params)
    return "-100" if "cc" in word else f"{0.8 * word.count('a'):.1f}"


def run_particles(value: Any, answers: Any, seed: int, n: int = 20) -> SearchResult:
    kept: list[SearchResult] = []

    @radixlang.function
    def program(s: State) -> None:
        s += "word: "
        kept.append(search(s, gen("x"), value, policy=SMC(n), depth=LENGTH, budget=10_000))

    program.run(runtime=FakeBackend(answers), seed=seed).text()
    return kept[0]


def share_of_a(result: SearchResult) -> float:
    return result.mean(lambda node: word_of(node).count("a") / LENGTH)


def check_near(found: list[float], expected: float) -> None:
    """Within two standard errors of the mean."""
    assert abs(fmean(found) - expected) < 2 * stdev(found) / math.sqrt(len(found))


def test_particles_of_a_scorer_program_are_near_enumeration() -> None:
    mean, log_total = exact()
    results = [run_particles(by_program, scored_letter, seed) for seed in range(16)]
    check_near([share_of_a(result) for result in results], mean)
    check_near([math.exp(result.log_evidence or 0.0) for result in results], math.exp(log_total))


def other_chances(prefix: str) -> dict[str, float]:
    """Another toy model: letters take turns."""
    last = prefix[-1] if prefix else ""
    raw = {each: 1.0 if each == last else 2.5 - LETTERS.index(each) / 2 for each in LETTERS}
    return {each: value / sum(raw.values()) for each, value in raw.items()}


def log_chance(model: Callable[[str], dict[str, float]], word: str) -> float:
    return sum(math.log(model(word[:i])[each]) for i, each in enumerate(word))


def test_particles_of_a_log_probability_ratio_are_the_other_models() -> None:
    """The potential log q − log p makes samples of q out of samples of p."""

    def ratio(branch: State) -> float:
        word = branch.text().removeprefix("word: ")
        return log_chance(other_chances, word) - log_chance(chances, word)

    everything = map("".join, itertools.product(LETTERS, repeat=LENGTH))
    expected = sum(
        math.exp(log_chance(other_chances, word)) * word.count("a") / LENGTH for word in everything
    )
    results = [run_particles(ratio, letter, seed, n=40) for seed in range(24)]
    evidence = [math.exp(result.log_evidence or 0.0) for result in results]
    check_near(evidence, 1.0)
    shares = map(share_of_a, results)  # biased by themselves, but not times the evidence
    check_near([a * b for a, b in zip(evidence, shares, strict=True)], expected)


def test_a_failed_scorer_kills_its_particle_alone() -> None:
    def ill(prompt: str, params: SamplingParams) -> str | BaseException:
        if "\n" not in prompt:
            return letter(prompt, params)
        return RequestError("the judge is ill") if "c" in prompt.split("\n")[0] else "0.5"

    result = run_particles(by_program, ill, seed=1)
    assert all("c" not in word_of(each.node) for each in result.particles if each.weight)
    with pytest.raises(ProgramError, match="all 20 particles are dead"):
        run_particles(by_program, lambda prompt, params: RequestError("ill"), seed=1)
