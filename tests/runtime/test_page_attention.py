"""Generations that read the pages that matter: usage, one answer, and exact ones beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixlang import Exact, SamplingParams, TopMass, TopPages, gen
from radixlang.attention import Attention
from radixlang.errors import ParameterError
from radixlang.protocol import Completion
from radixlang.runtime.runtime_config import RuntimeConfig
from tests.conftest import make_tiny_model

Start = Callable[..., Any]
LENGTH, STEPS = 600, 20
Answer = tuple[tuple[int, ...], list[float]]


def prompt_ids(num: int = LENGTH, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 440, num)]


def params(attention: Attention | None, **options: Any) -> SamplingParams:
    return SamplingParams(**{
        "temperature": 0, "max_tokens": STEPS, "ignore_eos": True, "logprobs": True,
        "attention": attention, **options,
    })  # fmt: skip


def asked(
    runtime: Any, ids: list[int], attention: Attention | None = None, **options: Any
) -> Completion:
    branch = runtime.new_branch()
    branch.extend(ids)
    done: Completion = branch.generate(params(attention, **options)).result(120)
    branch.release()
    return done


def answer(done: Completion) -> Answer:
    assert done.logprobs is not None
    return done.token_ids, [each.logprob for each in done.logprobs]


@pytest.mark.parametrize("is_native", [True, False])
def test_usage_says_how_many_pages_were_read(make_runtime: Start, is_native: bool) -> None:
    runtime = make_runtime(make_tiny_model(native=is_native))
    exact, some, most = (
        asked(runtime, prompt_ids(), attention).usage
        for attention in (Exact(), TopPages(2), TopMass(0.6))
    )
    assert (exact.num_pages, exact.num_pages_read, exact.omitted_mass) == (0, 0, 0.0)
    # of each generated token that was computed: pages up to its own, of 2 layers and 2 key heads
    positions = range(LENGTH, LENGTH + STEPS - 1)
    all_pages = 4 * sum(position // 64 + 1 for position in positions)
    assert some.num_pages == most.num_pages == all_pages
    assert some.num_pages_read == 4 * 5 * len(positions)
    assert 0 < some.omitted_mass < 1
    assert most.num_pages_read <= all_pages
    assert 0 < most.omitted_mass <= 0.6


def test_a_bound_that_nothing_meets_is_the_exact_answer_and_shares_nothing(
    make_runtime: Start,
) -> None:
    runtime = make_runtime()
    exact = asked(runtime, prompt_ids())
    whole = asked(runtime, prompt_ids(), TopPages(10**6))
    assert answer(whole) == answer(exact)
    assert whole.usage.num_pages_read == whole.usage.num_pages > 0
    behind = [*prompt_ids(), *exact.token_ids[:10]]
    assert asked(runtime, behind, max_tokens=1).usage.num_cached_tokens == len(behind) - 1


@pytest.mark.parametrize("attention", [TopPages(1), TopMass(0.6)], ids=str)
def test_exact_generations_never_read_what_was_computed_from_less(
    make_runtime: Start, attention: Attention
) -> None:
    ids = prompt_ids()
    expected = asked(make_runtime(), ids)
    runtime = make_runtime()
    rough = asked(runtime, ids, attention)
    assert answer(rough) != answer(expected)
    behind = asked(runtime, [*ids, *rough.token_ids], max_tokens=1)
    assert behind.usage.num_cached_tokens == LENGTH  # the prompt, and nothing of the answer
    exact = asked(runtime, ids)
    assert answer(exact) == answer(expected)
    again = asked(runtime, ids, attention)
    assert answer(again) == answer(rough)


def test_a_branch_goes_on_from_what_it_has(make_runtime: Start) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend(prompt_ids())
    rough = branch.generate(params(TopMass(0.6))).result(120)
    branch.extend([5, 6, 7])
    rest = branch.generate(params(None, max_tokens=3)).result(120)
    assert rest.usage.num_cached_tokens == LENGTH + STEPS - 1
    assert rest.usage.num_computed_tokens == 4  # the last token, which reads as it was chosen to
    assert rest.usage.num_pages == 4 * ((LENGTH + STEPS - 1) // 64 + 1)
    assert len(rough.token_ids) == STEPS
    [child] = branch.fork(1)
    more = child.generate(params(TopPages(2), max_tokens=3)).result(120)
    assert more.usage.num_pages > 0
    for each in (branch, child):
        each.release()


@pytest.mark.parametrize("attention", [TopPages(2), TopMass(0.6)], ids=str)
def test_one_answer_in_any_company(make_runtime: Start, attention: Attention) -> None:
    prompts = [prompt_ids(400)[: 300 + 20 * i] + prompt_ids(150, seed=i) for i in range(4)]
    alone = [answer(asked(make_runtime(), ids, attention)) for ids in prompts]
    runtime = make_runtime(max_batch_tokens=90)
    started = []
    for ids, own in zip(prompts * 2, [attention] * 4 + [Exact()] * 4, strict=True):
        branch = runtime.new_branch()
        branch.extend(ids)
        started.append((branch, branch.generate(params(own))))
    found = [answer(generation.result(120)) for _, generation in started]
    assert found[:4] == alone
    for branch, _ in started:
        branch.release()
    exact = [answer(asked(make_runtime(), ids)) for ids in prompts]
    assert found[4:] == exact


def test_one_answer_after_preemption_and_compaction(make_runtime: Start) -> None:
    ids, attention = prompt_ids(500), TopMass(0.6)
    alone = answer(asked(make_runtime(), ids, attention))
    small = make_runtime(num_pages=620)
    branches = []
    for seed in range(3):
        branch = small.new_branch()
        branch.extend(ids if not seed else prompt_ids(300, seed))
        branches.append((branch, branch.generate(params(attention, max_tokens=STEPS))))
    assert answer(branches[0][1].result(120)) == alone
    for branch, generation in branches:
        generation.result(120)
        branch.release()
    small.core.call(lambda: small.core.upkeep.compactor.compact())
    assert answer(asked(small, ids, attention)) == alone


def test_what_a_restart_reads_from_disk_is_exact_for_exact_generations(
    make_runtime: Start, tmp_path: Path
) -> None:
    first = make_runtime(disk=tmp_path)
    asked(first, prompt_ids())
    rough = asked(first, prompt_ids(), TopPages(1))
    first.close()
    again = make_runtime(disk=tmp_path)
    behind = [*prompt_ids(), *rough.token_ids]
    assert answer(asked(again, behind)) == answer(asked(make_runtime(), behind))
    assert answer(asked(again, prompt_ids(), TopPages(1))) == answer(rough)


def test_cold_prompts_are_bounded_as_they_are_read(make_runtime: Start) -> None:
    runtime = make_runtime(cold_tokens=2048, cold_idle_s=0.0)
    asked(runtime, prompt_ids(), max_tokens=1)
    memory = runtime.core.memory
    runtime.core.call(lambda: memory.cold.quantize_idle())
    assert runtime.core.call(lambda: any(node.quantized for node in memory.tree.nodes()))
    done = asked(runtime, prompt_ids(), TopMass(0.6))
    assert 0 < done.usage.omitted_mass <= 0.6


def test_the_runtime_has_a_default(make_runtime: Start) -> None:
    runtime = make_runtime(attention=TopPages(1))
    assert asked(runtime, prompt_ids()).usage.num_pages > 0
    assert asked(runtime, prompt_ids(), Exact()).usage.num_pages == 0


@pytest.mark.parametrize("value", [0, -1, True, 1.0, None, "3"])
def test_a_number_of_pages_is_at_least_one(value: Any) -> None:
    with pytest.raises(ParameterError, match="integer of at least 1 as its number of pages"):
        TopPages(value)


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, True, float("nan"), None, "0.1"])
def test_a_share_lies_between_nothing_and_all(value: Any) -> None:
    with pytest.raises(ParameterError, match="above 0 and below 1"):
        TopMass(value)


def test_what_is_no_attention_is_refused() -> None:
    for wrong in (3, "exact", {"k": 1, "epsilon": 0.1}, {"pages": 3}):
        with pytest.raises(ParameterError, match=r"attention must be Exact\(\), TopPages\(k\)"):
            gen("a", attention=wrong)
    with pytest.raises(ParameterError, match="attention must be"):
        RuntimeConfig(attention="exact")  # type: ignore[arg-type]


def test_a_gpu_is_refused_by_name(make_runtime: Start) -> None:
    runtime = make_runtime()
    serving = runtime.core.branches.serving
    object.__setattr__(serving, "reads_pages", False)
    branch = runtime.new_branch()
    branch.extend(prompt_ids(10))
    with pytest.raises(ParameterError, match=r"attention=TopPages\(k=3\) is served on a CPU alone"):
        branch.generate(params(TopPages(3))).result(60)
