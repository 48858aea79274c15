"""Adapters in the radix tree: what is shared, what is computed again, and what is never read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import radixlang as rx
from radixlang.errors import AdapterFormatError, ParameterError
from radixlang.protocol import AdapterUse
from radixlang.sampling_params import SamplingParams
from tests.runtime.adapters.conftest import our_model, save_adapter

TIMEOUT = 60
PARAMS = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=True)
PROMPT = [5, 40, 77, 300, 21, 9, 150, 33, 60, 2, 411, 87]
OTHER = [8, 9, 10]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("adapters")
    ranks = {"a": 4, "b": 8, "c": 2, "d": 1}
    return {
        name: save_adapter("llama", home / name, seed=seed, r=rank)
        for seed, (name, rank) in enumerate(ranks.items(), 1)
    }


@pytest.fixture
def runtime(
    make_runtime: Callable[..., Any], tiny_model: Any, folders: dict[str, Path]
) -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        made = make_runtime(our_model("llama", tiny_model), **options)
        for name, folder in folders.items():
            made.load_adapter(name, folder)
        return made

    return make


def ask(branch: Any, use: AdapterUse | None, params: SamplingParams = PARAMS) -> Any:
    branch.use_adapter(use)
    return branch.generate(params)


def answer(runtime: Any, use: AdapterUse | None, prompt: list[int] = PROMPT) -> Any:
    branch = runtime.new_branch()
    branch.extend(prompt)
    return ask(branch, use).result(TIMEOUT)


def same(one: Any, other: Any) -> None:
    """Equal tokens; log-probabilities as near as float32 products in other company are."""
    assert one.token_ids == other.token_ids
    for mine, yours in zip(one.logprobs, other.logprobs, strict=True):
        assert abs(mine.logprob - yours.logprob) < 1e-5


def test_a_branch_with_an_adapter_computes_nothing_of_the_prefix_again(
    runtime: Callable[..., Any],
) -> None:
    served = runtime()
    answer(served, None)
    served.reset_stats()
    first = answer(served, AdapterUse("a"))
    assert first.usage.num_cached_tokens == len(PROMPT) - 1
    assert first.usage.num_computed_tokens == 1  # the last, whose logits choose the first token
    again = answer(served, AdapterUse("a"))  # the same adapter at the same place
    assert again.usage.num_cached_tokens == len(PROMPT)
    same(again, first)
    assert served.stats().num_recomputed_tokens == 0


def test_one_at_the_root_shares_nothing_with_the_base(runtime: Callable[..., Any]) -> None:
    served = runtime()
    answer(served, None)
    branch = served.new_branch()
    branch.use_adapter(AdapterUse("a"))
    branch.extend(PROMPT)
    assert branch.generate(PARAMS).result(TIMEOUT).usage.num_cached_tokens == 0


def test_a_scale_of_0_is_the_model_itself(runtime: Callable[..., Any]) -> None:
    served = runtime()
    base = answer(served, None)
    for use in (AdapterUse("a", 0.0), AdapterUse("a", layers=())):
        found = answer(served, use)
        same(found, base)
        assert found.usage.num_computed_tokens == 0


def test_forks_of_four_adapters_in_one_batch_answer_as_each_alone(
    runtime: Callable[..., Any],
) -> None:
    names = ["a", "b", "c", "d"]
    alone = {name: answer(runtime(), AdapterUse(name)) for name in names}
    served = runtime()
    root = served.new_branch()
    root.extend(PROMPT)
    branches = list(root.fork(32))
    pending = [ask(branch, AdapterUse(names[i % 4])) for i, branch in enumerate(branches)]
    for i, generation in enumerate(pending):
        same(generation.result(TIMEOUT), alone[names[i % 4]])
    assert served.stats().num_computed_tokens <= len(PROMPT) + 4


def test_text_behind_an_adapter_reads_what_it_wrote_with_the_model_itself(
    runtime: Callable[..., Any],
) -> None:
    served = runtime()
    branch, twin = served.new_branch(), served.new_branch()
    for each in (branch, twin):
        each.extend(PROMPT)
        ask(each, AdapterUse("a")).result(TIMEOUT)
        each.use_adapter(None)
        each.extend(OTHER)
    first = branch.generate(PARAMS).result(TIMEOUT)
    second = twin.generate(PARAMS).result(TIMEOUT)
    same(first, second)
    assert second.usage.num_computed_tokens == 0
    plain = served.new_branch()
    plain.extend(list(branch.tokens().result(TIMEOUT))[: len(PROMPT) + 6 + len(OTHER)])
    usage = plain.generate(PARAMS).result(TIMEOUT).usage
    assert usage.num_cached_tokens == len(PROMPT) - 1  # what the adapter wrote is another path


def test_retracted_and_evicted_branches_answer_the_same(runtime: Callable[..., Any]) -> None:
    long = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, logprobs=True)

    def pending(served: Any) -> list[Any]:
        root = served.new_branch()
        root.extend(PROMPT)
        branches = root.fork(6)
        for i, branch in enumerate(branches):
            branch.use_adapter(AdapterUse("ab"[i % 2], 0.5 + 0.1 * i))
            branch.extend([20 + i])
        return [branch.generate(long) for branch in branches]

    wanted = [each.result(TIMEOUT) for each in pending(runtime())]
    served = runtime(num_pages=100)
    for found, expected in zip(pending(served), wanted, strict=True):
        same(found.result(TIMEOUT), expected)
    stats = served.stats()
    assert stats.num_retracted > 0
    assert stats.num_evicted_tokens > 0


def test_another_adapter_of_the_same_name_never_reads_what_the_old_one_wrote(
    runtime: Callable[..., Any], folders: dict[str, Path]
) -> None:
    served = runtime()
    old = answer(served, AdapterUse("a"))
    branch = served.new_branch()
    branch.extend(PROMPT)
    branch.use_adapter(AdapterUse("a"))
    served.load_adapter("a", folders["b"])
    new = answer(served, AdapterUse("a"))
    same(new, answer(runtime(), AdapterUse("b")))
    same(branch.generate(PARAMS).result(TIMEOUT), old)  # it goes on with the one that it began
    assert [each.name for each in served.list_adapters()] == ["a", "b", "c", "d"]


def test_new_weights_take_adapters_along(runtime: Callable[..., Any], tiny_model: Any) -> None:
    served = runtime()
    before = answer(served, AdapterUse("a"))
    served.update_weights(our_model("llama", tiny_model))
    after = answer(served, AdapterUse("a"))
    same(after, before)
    assert after.usage.num_cached_tokens == 0


def test_scores_are_the_adapters(runtime: Callable[..., Any]) -> None:
    served = runtime()
    root = served.new_branch()
    root.extend(PROMPT)
    base, adapted = root.fork(2)
    adapted.use_adapter(AdapterUse("b"))
    options = [" the", " town"]
    plain, changed = base.score(options), adapted.score(options)
    assert plain.result(TIMEOUT)[0].total != changed.result(TIMEOUT)[0].total
    (whole,) = root.fork(1)
    whole.use_adapter(AdapterUse("b"))
    record = whole.generate(
        SamplingParams(max_tokens=1, temperature=0.0, top_logprobs=20)
    ).result(TIMEOUT).logprobs[0]  # fmt: skip
    tops = dict(record.top)
    for score in changed.result(TIMEOUT):
        if score.token_ids[0] in tops:
            assert abs(score.logprobs[0] - tops[score.token_ids[0]]) < 1e-5


def test_programs_name_adapters_and_the_drawing_shows_them(runtime: Callable[..., Any]) -> None:
    served = runtime()

    @rx.function
    def program(s: rx.State) -> None:
        s += "The theatre in the north"
        plain, checked = s.fork(2)
        plain += rx.gen("x", max_tokens=4, temperature=0)
        checked += rx.gen("x", max_tokens=4, temperature=0, adapter="a", scale=2)
        with checked.adapter("b"):
            checked += " of the town" + rx.select("y", [" plays", " sleeps"])
        s.join(s.fork(1))

    program.run(runtime=served)
    shown = served.tree_text()
    assert "adapter 'a' at 2" in shown
    assert "adapter 'b'" in shown
    whole = program.run(runtime=served, adapter="c")
    assert "adapter 'c'" in served.tree_text()
    assert whole.error is None


def test_unknown_names_fail_the_program_alone(runtime: Callable[..., Any]) -> None:
    served = runtime()
    with pytest.raises(ParameterError, match=r"no adapter 'x' is loaded \(loaded: 'a', 'b'"):
        served.new_branch().use_adapter(AdapterUse("x"))
    with pytest.raises(ParameterError, match="the model has layers 0 to 2"):
        served.new_branch().use_adapter(AdapterUse("a", layers=(1, 3)))

    @rx.function
    def program(s: rx.State) -> None:
        s += "a" + rx.gen("x", adapter="x", max_tokens=2)

    for options in ({}, {"adapter": "y"}):
        with pytest.raises(rx.ProgramError, match="no adapter") as caught:
            program.run(runtime=served, **options)
        assert isinstance(caught.value.__cause__, ParameterError)
    served.unload_adapter("a")
    with pytest.raises(ParameterError, match="no adapter 'a' is loaded"):
        served.unload_adapter("a")
    answer(served, AdapterUse("b"))


def test_an_adapter_of_another_model_is_refused(
    runtime: Callable[..., Any], tmp_path: Path
) -> None:
    served = runtime()
    with pytest.raises(AdapterFormatError, match=r"_proj .* trained on another model"):
        served.load_adapter("x", save_adapter("qwen3", tmp_path))
    assert len(served.list_adapters()) == 4
