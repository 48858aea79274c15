"""The engine's audit of itself, on faults put into a running engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60
LONG = SamplingParams(max_tokens=400, min_tokens=400, temperature=0.0, ignore_eos=True)


@pytest.fixture
def runtime(tiny_model: Any) -> Iterator[Any]:
    """One whose violations are wanted."""
    with Runtime(tiny_model, num_pages=2048, seed=0) as made:
        yield made


def numbers(runtime: Any) -> set[int]:
    return {violation.number for violation in runtime.audit()}


def test_a_running_engine_is_clean(runtime: Any) -> None:
    root = runtime.new_branch()
    root.extend("The theatre in the north")
    branches = root.fork(3)
    generations = [branch.generate(LONG) for branch in branches]
    next(iter(generations[-1]))
    assert runtime.audit() == []
    for branch in (root, *branches):
        branch.cancel()


@pytest.mark.parametrize("value", [0.0, float("nan")], ids=["never-written", "freed-since"])
def test_10_a_cached_token_that_was_not_computed_is_found(runtime: Any, value: float) -> None:
    runtime.prebuild("The theatre in the north")
    assert runtime.audit() == []

    def undo() -> None:
        (node,) = runtime.core.memory.tree.nodes()
        for layer in range(2):
            runtime.core.memory.cache[layer].k[int(node.slots[1])] = value

    runtime.core.call(undo)
    (violation,) = runtime.audit()
    assert (violation.number, violation.name) == (10, "only_computed_is_cached")
    assert "never computed" in violation.detail


def test_11_a_plan_that_reads_other_slots_than_the_trees_is_found(runtime: Any) -> None:
    branch = runtime.new_branch()
    branch.extend("The theatre in the north")
    generation = branch.generate(LONG)
    for count, _ in enumerate(generation):
        if count == 2:
            break
    found: list[Any] = []

    def swap() -> None:
        """Between two decode steps: the kept plan reads the first two tokens crosswise."""
        assert numbers(runtime) == set()
        plan = runtime.core.runner._plan
        slots = plan.batch.segment_slots[0].copy()
        slots[:2] = slots[1], slots[0]
        before, plan.batch.segment_slots[0] = plan.batch.segment_slots[0], slots
        found.extend(runtime.audit())
        plan.batch.segment_slots[0] = before

    runtime.core.call(swap)
    assert [(each.number, each.name) for each in found] == [(11, "tables_follow_tree")]
    assert f"generation on {branch._state.name}" in found[0].detail
    branch.cancel()


def test_an_engine_at_rest_merges_a_node_with_its_only_child(make_runtime: Any) -> None:
    runtime = make_runtime(debug=False)
    tree = runtime.core.memory.tree
    for end in ([50, 51], [60, 61], [50, 51]):
        branch = runtime.new_branch()
        branch.extend([*range(3, 23), *end])
        branch.generate(SamplingParams(max_tokens=1, temperature=0.0)).result(60)
        branch.release()
    runtime.core.call(lambda: tree.evict(1))
    runtime.core.call(lambda: tree.evict(1))
    before = runtime.core.call(lambda: tree.structure.num_nodes)
    runtime.core.call(runtime.core.upkeep.at_rest)
    assert runtime.core.call(lambda: tree.structure.num_nodes) < before
    assert tree.peek("", [*range(3, 23), 50, 51]) == 22
