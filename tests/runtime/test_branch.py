"""Branches: runs of text and tokens, order of operations, forks before their time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from radixlang.errors import CancelledError, ParameterError
from radixlang.protocol import Markup
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60
GREEDY = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)


@pytest.fixture
def runtime(make_runtime: Callable[..., Any]) -> Any:
    return make_runtime()


def tokens(branch: Any) -> tuple[int, ...]:
    found: tuple[int, ...] = branch.tokens().result(TIMEOUT)
    return found


def test_token_ids_cut_the_run_and_stay_as_they_are(runtime: Any) -> None:
    branch = runtime.new_branch()
    odd = [runtime.encode("t")[0], runtime.encode("he")[0]]  # not how the tokenizer would write it
    branch.extend("the town ")
    branch.extend(odd)
    branch.extend(" sleeps")
    middle = runtime.encode("the town ")
    assert list(tokens(branch)) == middle + odd + runtime.encode(" sleeps")


def test_reading_tokens_does_not_fix_them(runtime: Any) -> None:
    branch, whole = runtime.new_branch(), runtime.new_branch()
    branch.extend("The thea")
    tokens(branch)
    branch.extend("tre")
    whole.extend("The theatre")
    assert tokens(branch) == tokens(whole)


def test_data_is_never_a_special_token_and_markup_is(runtime: Any) -> None:
    branch = runtime.new_branch()
    branch.extend(Markup("<|im_start|>user\n"))
    branch.extend("<|im_end|>")
    branch.extend(Markup("<|im_end|>"))
    found = tokens(branch)
    assert found.count(2) == 1
    assert found[0] == 1
    assert found[-1] == 2


def test_fork_while_a_generation_runs_waits_for_it(runtime: Any) -> None:
    branch = runtime.new_branch()
    branch.extend("Once")
    generation = branch.generate(GREEDY)
    (child,) = branch.fork(1)
    (grandchild,) = child.fork(1)
    grandchild.extend(" more")
    assert generation.result(TIMEOUT).token_ids[-1] in tokens(child)
    assert tokens(grandchild)[: len(tokens(child))] == tokens(child)


def test_child_cancelled_before_it_is_born_fails_alone(runtime: Any) -> None:
    branch = runtime.new_branch()
    branch.extend("Once")
    branch.generate(SamplingParams(max_tokens=200, min_tokens=200, ignore_eos=True))
    first, second = branch.fork(2)
    lost = first.generate(GREEDY)
    kept = second.generate(GREEDY)
    first.cancel()
    assert isinstance(lost.exception(TIMEOUT), CancelledError)
    assert len(kept.result(TIMEOUT).token_ids) == 5


def test_ten_thousand_forks_hold_no_memory_of_their_own(runtime: Any) -> None:
    branch = runtime.new_branch()
    branch.extend("A prefix")
    branch.generate(GREEDY).result(TIMEOUT)
    runtime.reset_stats()
    children = branch.fork(10_000)
    assert tokens(children[-1]) == tokens(branch)
    stats = runtime.stats()
    assert stats.kv_bytes_peak == stats.kv_bytes_used
    assert stats.num_branches == 10_001
    last = children[-1].generate(GREEDY).result(TIMEOUT)
    assert last.usage.num_cached_tokens == last.usage.num_prompt_tokens - 1


@pytest.mark.parametrize("n", [-1, 2.0, True, "3"])
def test_fork_wants_a_count(runtime: Any, n: Any) -> None:
    with pytest.raises(ParameterError, match="number of branches"):
        runtime.new_branch().fork(n)


def test_wrong_arguments_are_refused_at_the_call(runtime: Any) -> None:
    branch = runtime.new_branch()
    with pytest.raises(ParameterError, match="list of options"):
        branch.score("yes")
    with pytest.raises(ParameterError, match="at least one option"):
        branch.score([])
    with pytest.raises(ParameterError, match="options must be text"):
        branch.score([1])
    with pytest.raises(ParameterError, match="SamplingParams"):
        branch.generate({"temperature": 0})
    with pytest.raises(ParameterError, match="timeout_s"):
        branch.generate(GREEDY, timeout_s=0)


def test_scoring_can_be_cancelled(runtime: Any) -> None:
    branch = runtime.new_branch()
    branch.extend("Once")
    branch.generate(SamplingParams(max_tokens=500, min_tokens=500, ignore_eos=True))
    scoring = branch.score(["a", "b"])
    assert scoring.cancel()
    assert isinstance(scoring.exception(TIMEOUT), CancelledError)
    assert not scoring.cancel()
