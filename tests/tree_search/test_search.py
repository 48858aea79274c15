"""Search over branches: what is chosen, what is freed, what fails, what repeats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import radixlang
from radixlang import (
    MCTS,
    SMC,
    Beam,
    BestFirst,
    ParameterError,
    ProgramError,
    SamplingParams,
    SearchNode,
    SearchResult,
    SearchTree,
    State,
    gen,
    search,
)
from radixlang.testing import FakeBackend

POLICIES = [
    BestFirst(branching=3),
    BestFirst(branching=2, parallel=2, max_open=3),
    Beam(width=2, branching=3),
    MCTS(branching=3, parallel=2),
    SMC(6),
]


def digit(prompt: str, params: SamplingParams) -> str:
    """A digit that depends on the seed alone, which differs from branch to branch."""
    return str((params.seed or 0) % 10)


def number(branch: State) -> float:
    return float("0." + branch.text().removeprefix("n="))


def run(policy: Any, backend: FakeBackend | None = None, **options: Any) -> Any:
    """The state and the result of a search for a large number, digit by digit."""
    found: dict[str, SearchResult] = {}

    @radixlang.function
    def program(s: State) -> None:
        s += "n="
        given = {"depth": 3, **options}
        found["result"] = search(s, gen("digit"), number, policy=policy, **given)
        s += "!"

    state = program.run(runtime=backend or FakeBackend(digit), seed=5)
    return state, found["result"]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_state_goes_on_from_the_best_branch(policy: Any) -> None:
    backend = FakeBackend(digit)
    state, result = run(policy, backend)
    digits = [node.values["digit"] for node in result.best.path[1:]]
    assert state.text() == "n=" + "".join(digits) + "!"
    assert len(digits) == 3
    assert result.best.value == float("0." + "".join(digits))
    assert state["digit"] == digits[-1]
    del state
    assert backend.audit() == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_search_repeats_by_its_seed(policy: Any) -> None:
    trees = []
    for delay in (0.0, 0.001):
        _, result = run(policy, FakeBackend(digit, delay=delay), budget=30)
        trees.append([
            (node.index, node.parent.index if node.parent else None, node.values, node.value)
            for node in result.nodes
        ])  # fmt: skip
    assert trees[0] == trees[1]
    assert len(trees[0]) > 6


def test_best_first_grows_the_best_open_node_and_the_oldest_of_equals() -> None:
    values = iter([1, 5, 5, 2, 3, 0, 9, 9, 9])
    grown: list[int] = []

    @radixlang.function
    def program(s: State) -> None:
        s += "n="
        found = search(
            s, gen("x"), lambda _: float(next(values)), policy=BestFirst(branching=3), budget=9
        )
        grown.extend(node.parent.index for node in found.nodes if node.parent)
        assert found.best.index == 7

    program.run(runtime=FakeBackend(digit), seed=1).text()
    assert grown == [0, 0, 0, 2, 2, 2, 3, 3, 3]


def test_a_beam_keeps_the_widest_best_of_every_level() -> None:
    _, result = run(Beam(width=2, branching=4))
    for depth in (1, 2, 3):
        level = [node for node in result.nodes if node.depth == depth]
        assert len(level) == (4 if depth == 1 else 8)
        parents = {node.parent for node in level}
        above = [node for node in result.nodes if node.depth == depth - 1]
        best = sorted(above, key=lambda node: (-node.value, node.index))[:2]
        assert parents <= {*best, result.best.path[0]}
    assert result.best.value == max(node.value for node in result.nodes if node.depth == 3)


def test_monte_carlo_search_visits_the_better_side_more() -> None:
    @radixlang.function
    def program(s: State) -> None:
        s += "n="
        found = search(
            s, gen("x"), lambda branch: float(branch.text()[2:3] >= "5"),
            policy=MCTS(branching=4, exploration=0.3), budget=60, depth=6,
        )  # fmt: skip
        sides = [node.path[1].value for node in found.nodes if node.depth > 1]
        assert {node.value for node in found.nodes if node.depth == 1} == {0.0, 1.0}
        assert sides.count(1.0) > 3 * sides.count(0.0)

    program.run(runtime=FakeBackend(digit), seed=3).text()


def test_pruned_branches_are_free_at_once(make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    lives: list[int] = []

    @radixlang.function
    def program(s: State) -> None:
        s += "The theatre in the north"
        tree = SearchTree(s, gen("x", max_tokens=4, ignore_eos=True), lambda _: 0.0)
        children = tree.grow([tree.root] * 4)
        grandchildren = tree.grow([children[0]] * 3)
        lives.append(runtime.stats().num_branches)
        tree.prune(children[0])
        assert not any(node.is_live for node in (children[0], *grandchildren))
        tree.prune(children[1])
        s.next_token()  # the engine has seen the releases before
        lives.append(runtime.stats().num_branches)
        with pytest.raises(ParameterError, match="nothing grows from it"):
            tree.grow([children[0]])
        with pytest.raises(ParameterError, match="has ended"):
            tree.finish(children[0])
        tree.finish(children[2])

    program.run(runtime=runtime, seed=1).text()
    assert lives[0] - lives[1] == 5


def test_failures_are_their_own_branches_only() -> None:
    def value(branch: State) -> float:
        return branch.get("digit", int) if branch["digit"] in "468" else float("nan")

    def step(branch: State) -> None:
        branch += gen("digit")
        if branch["digit"] in "02":
            branch.get("digit", bool)

    state, result = run_with(step, value)
    failed = [node for node in result.nodes if not node.is_live and node.value == -math.inf]
    assert failed
    assert all(not node.children for node in failed)
    assert result.best.values["digit"] in "468"
    assert state.text().startswith("n=")


def run_with(step: Any, value: Any, **options: Any) -> Any:
    found: dict[str, Any] = {}

    @radixlang.function
    def program(s: State) -> None:
        s += "n="
        found["result"] = search(s, step, value, **{"depth": 2, **options})

    state = program.run(runtime=FakeBackend(digit), seed=5)
    state.text()
    return state, found["result"]


def test_a_branch_whose_generation_fails_is_dropped() -> None:
    calls: list[str] = []

    def answer(prompt: str, params: SamplingParams) -> str | BaseException:
        calls.append(prompt)
        return radixlang.RequestError("the disk is full") if len(calls) % 2 else "7"

    @radixlang.function
    def program(s: State) -> Any:
        s += "n="
        return search(s, gen("digit"), number, policy=Beam(2, 2), depth=2).nodes

    state = program.run(runtime=FakeBackend(answer), seed=1)
    errors = [node.error for node in state.result]
    assert sum(error is not None for error in errors) == 2
    assert all("disk is full" in str(error) for error in errors if error is not None)
    assert state.text() == "n=77"


@pytest.mark.parametrize("policy", POLICIES)
def test_when_nothing_is_left_the_last_error_is_named(policy: Any) -> None:
    def answer(prompt: str, params: SamplingParams) -> BaseException:
        return radixlang.RequestError("the disk is full")

    backend = FakeBackend(answer)

    @radixlang.function
    def program(s: State) -> None:
        s += "n="
        with pytest.raises(ProgramError, match="disk is full"):
            search(s, gen("digit"), number, policy=policy, depth=3)
        s += "the program goes on"

    assert program.run(runtime=backend, seed=1).text() == "n=the program goes on"
    assert backend.audit() == []


def test_an_error_of_the_programs_own_code_ends_the_search() -> None:
    backend = FakeBackend(digit)

    def value(branch: State) -> float:
        raise ZeroDivisionError("a mistake")

    @radixlang.function
    def program(s: State) -> None:
        s += "n="
        with pytest.raises(ZeroDivisionError, match="a mistake"):
            search(s, gen("digit"), value)
        s += "free"

    assert program.run(runtime=backend, seed=1).text() == "n=free"
    assert backend.audit() == []


def test_the_budget_counts_branches() -> None:
    for policy in POLICIES[:4]:
        _, result = run(policy, budget=7)
        assert len(result.nodes) <= 7
    _, result = run(BestFirst(branching=3), budget=7)
    assert len(result.nodes) == 7


def test_a_test_of_completeness_ends_paths() -> None:
    _, result = run(
        BestFirst(branching=3), depth=None, budget=60,
        is_complete=lambda branch: branch["digit"] in "369",
    )  # fmt: skip
    assert result.best.is_complete
    assert result.best.values["digit"] in "369"
    assert all(not node.children for node in result.nodes if node.is_complete)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Beam(width=0),
        lambda: BestFirst(branching=0),
        lambda: MCTS(parallel=-1),
        lambda: SMC(0),
        lambda: SMC(4, resample_below=2),
        lambda: run(Beam(), budget=0),
        lambda: run(Beam(), depth=0),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ParameterError, match=r"at least 1|share from 0 to 1"):
        make()


def test_a_search_computes_each_edge_of_its_tree_once(make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    length = 6
    options = {"max_tokens": length, "min_tokens": length, "ignore_eos": True, "temperature": 5.0}
    step = "\nThe moon:" + gen("x", **options)

    @radixlang.function
    def program(s: State) -> Any:
        s += "The theatre in the north of the town plays every night"
        return search(
            s, step, lambda b: float(len(b.text()) % 17), policy=Beam(2, 3), depth=3
        ).nodes

    runtime.reset_stats()
    state = program.run(runtime=runtime, seed=2)
    num_nodes = len(state.result)
    held, _, _ = runtime.path_tokens()
    stats = runtime.stats()
    # a generation computes all of its tokens but the last, which a child's prompt computes
    assert stats.num_computed_tokens + num_nodes * (length - 1) == held
    assert stats.num_generated_tokens == num_nodes * length


def test_a_quarter_of_the_memory_changes_no_result(make_runtime: Callable[..., Any]) -> None:
    """A tree of thought, 4 wide and 6 deep."""
    step = "\nThought:" + gen("x", max_tokens=16, min_tokens=16, ignore_eos=True, temperature=1.0)

    @radixlang.function
    def program(s: State) -> list[SearchNode]:
        s += "The theatre in the north of the town plays every night"
        policy = Beam(width=4, branching=4)
        return list(
            search(s, step, lambda b: float(hash_of(b.text()) % 997), policy=policy, depth=6).nodes
        )

    ample = make_runtime(deterministic=True)
    expected = program.run(runtime=ample, seed=3)
    unique = ample.path_tokens()[0]
    small = make_runtime(num_pages=unique // 4, deterministic=True)
    found = program.run(runtime=small, seed=3)
    assert found.text() == expected.text()
    assert [node.values for node in found.result] == [node.values for node in expected.result]
    assert len(found.result) == 4 + 5 * 16
    stats = small.stats()
    assert stats.num_evicted_tokens > 0
    assert stats.kv_bytes_peak <= ample.stats().kv_bytes_peak / 4


def hash_of(text: str) -> int:
    return sum(index * ord(character) for index, character in enumerate(text, 1))
