"""Rollouts: the tokens of a run as a tree, replayed under the weights, and rows for a trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import radixlang
from radixlang import Rollout, State, gen
from radixlang.errors import ParameterError

MakeRuntime = Callable[..., Any]


@radixlang.function
def several(s: State) -> list[tuple[int, ...]]:
    """All that makes tokens: forks, two gens on a branch, a constraint, a stop, a thought."""
    s += "The theatre in the"
    group = s.fork(4)
    group += " town" + gen("x", max_tokens=6, stop="e")
    group += " and so:" + gen("y", max_tokens=4, regex="ab[cd]e")
    s += gen("z", think=5, think_tags=("<t>", "</t>"), max_tokens=4) + " then"
    s += gen("w", max_tokens=4)
    return [branch.tokens() for branch in (*group, s)]


def run(runtime: Any, **options: Any) -> State:
    state: State = several.run(runtime=runtime, logprobs=True, seed=6, **options)
    return state


def test_paths_are_the_branches_own_tokens(make_runtime: MakeRuntime) -> None:
    state = run(make_runtime())
    rows = state.tree().flatten()
    by_branch = {(row.branch, row.name): row for row in rows}
    assert len(by_branch) == len(rows) == 6
    *branches, trunk = state.result
    for index, tokens in enumerate(branches):
        assert by_branch[(index,), "y"].token_ids == tokens
    assert by_branch[(), "w"].token_ids == trunk


def test_kinds_are_told(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    state = run(runtime)
    tree = state.tree()
    for row in tree.flatten():
        if row.name == "y":
            forced = [t for t, m in zip(row.completion_ids, row.mask, strict=True) if not m]
            assert " and so:ab" in runtime.decode(forced)
            assert row.mask[0] == 1
            assert row.mask[-1] == 0  # the e after c or d
    kinds = {node.kind for node in tree.nodes}
    assert kinds == {"given", "forced", "sampled"}
    for node in tree.nodes:
        assert node.index == 0 or node.parent is None or node.parent < node.index
        assert (node.logprobs is None) == (node.kind == "given")
    # in the trunk's path the answer stands without the thought it was sampled after
    trunk = next(row for row in tree.flatten() if row.name == "w")
    answer = state.completion("z").token_ids
    first = len(runtime.encode("The theatre in the"))
    assert trunk.prompt_ids[first : first + len(answer)] == answer


def test_replayed_log_probabilities_are_the_sampled_ones(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    rows = run(runtime).tree().flatten()
    for row, scores in zip(rows, runtime.score(rows), strict=True):
        assert len(scores) == len(row.completion_ids) == len(row.mask)
        sampled = np.array(row.mask, bool)
        found, recorded = np.array(scores)[sampled], np.array(row.logprobs)[sampled]
        np.testing.assert_allclose(found, recorded, atol=1e-5)


def test_a_replay_computes_every_token_of_the_tree_once(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()

    @radixlang.function
    def samples(s: State) -> None:
        s += "The theatre in the north of the town"
        group = s.fork(12)
        group += gen("x", max_tokens=10)

    tree = samples.run(runtime=runtime, logprobs=True, ignore_eos=True, seed=2).tree()
    rows = tree.flatten()
    replaying = make_runtime()
    replaying.score(rows)
    parents = {node.parent for node in tree.nodes}
    leaves = sum(node.index not in parents for node in tree.nodes)
    # the last token of a path predicts none
    assert replaying.stats().num_computed_tokens == tree.num_tokens - leaves
    assert sum(len(row.token_ids) for row in rows) > 1.5 * tree.num_tokens


def test_other_weights_have_other_scores_and_a_version(
    make_runtime: MakeRuntime, tiny_model: Any
) -> None:
    model = tiny_model.model
    swapped = object.__new__(type(model))
    swapped.__dict__.update(model.__dict__, _layers=tuple(reversed(model._layers)))
    runtime = make_runtime()
    before = run(runtime).tree().flatten()
    assert runtime.weights_version == 0
    runtime.update_weights(replace(tiny_model, model=swapped))
    assert runtime.weights_version == 1
    old, new = before[0].logprobs, runtime.score(before)[0]
    assert max(abs(a - b) for a, b in zip(old or (), new, strict=True)) > 0.01
    after = run(runtime).tree()
    assert {row.weights_version for row in after.rollouts} == {1}
    assert {node.weights_version for node in after.nodes if node.kind != "given"} == {1}
    for row, scores in zip(after.flatten(), runtime.score(after.flatten()), strict=True):
        sampled = np.array(row.mask, bool)
        np.testing.assert_allclose(
            np.array(scores)[sampled], np.array(row.logprobs)[sampled], atol=1e-5
        )


def test_the_packed_tree_has_every_path(make_runtime: MakeRuntime) -> None:
    tree = run(make_runtime()).tree()
    packed = tree.flatten("once")
    sees = packed.attention_mask()
    assert len(packed.token_ids) == tree.num_tokens == len(sees)
    assert len(packed.ends) == len(tree.rollouts)
    for row, end in zip(tree.rollouts, packed.ends, strict=True):
        path = np.flatnonzero(sees[end])
        path = path[np.argsort(np.array(packed.position_ids)[path])]
        assert tuple(np.array(packed.token_ids)[path]) == row.token_ids
        assert tuple(np.array(packed.position_ids)[path]) == tuple(range(len(path)))
        assert tuple(np.array(packed.mask)[path][len(row.prompt_ids) :]) == row.mask
        recorded = np.array(packed.logprobs)[path][len(row.prompt_ids) :]
        np.testing.assert_array_equal(recorded, np.array(row.logprobs))


def test_a_healed_prompt_is_the_one_that_was_read(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()

    @radixlang.function
    def heals(s: State) -> tuple[int, ...]:
        s += "The theatre in the nor" + gen("x", max_tokens=6, temperature=0)
        return s.tokens()

    state = heals.run(runtime=runtime, logprobs=True)
    (row,) = state.tree().flatten()
    assert row.token_ids == state.result
    assert len(row.completion_ids) == len(state.completion("x").token_ids)


def test_equal_answers_are_two_rows_on_one_path(make_runtime: MakeRuntime) -> None:
    @radixlang.function
    def twice(s: State) -> None:
        s += "The theatre"
        group = s.fork(2)
        group += gen("x", max_tokens=5, temperature=0)
        group[1].append(" more" + gen("y", max_tokens=3, temperature=0))

    tree = twice.run(runtime=make_runtime(), logprobs=True, ignore_eos=True).tree()
    assert [row.branch for row in tree.rollouts] == [(0,), (1,)]
    assert tree.rollouts[1].token_ids[: len(tree.rollouts[0].token_ids)] == (
        tree.rollouts[0].token_ids
    )
    assert tree.num_tokens == len(tree.rollouts[1].token_ids)
    assert len(tree.flatten("once").ends) == 2


def test_without_logprobs_rows_have_none(make_runtime: MakeRuntime) -> None:
    state = several.run(runtime=make_runtime(), seed=6)
    assert {row.logprobs for row in state.tree().flatten()} == {None}
    assert state.tree().flatten("once").logprobs is None


def test_wrong_arguments_are_refused(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    tree = several.run(runtime=runtime, seed=6).tree()
    with pytest.raises(ParameterError, match='"repeated" or "once"'):
        tree.flatten("twice")
    with pytest.raises(ParameterError, match="row 1 has no prompt"):
        runtime.score([Rollout((1,), (2,), None, (1,)), Rollout((), (2,), None, (1,))])
    assert runtime.score([Rollout((1, 2), (), None, ())]) == [()]
    assert runtime.score([]) == []
