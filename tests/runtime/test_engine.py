"""The runtime as a whole: what is computed, what is held, and what goes wrong."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.constraints.specs import Regex
from radixlang.errors import (
    CancelledError,
    DeadlineError,
    IncompleteError,
    ModelNotFoundError,
    NumericalError,
    ParameterError,
    PoolExhaustedError,
    PromptTooLongError,
    RequestError,
    RuntimeClosedError,
    StateClosedError,
)
from radixlang.runtime.process.switch_interval import SWITCH_S
from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60
MakeRuntime = Callable[..., Any]


def greedy(num_tokens: int = 8, **more: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=num_tokens, min_tokens=num_tokens, temperature=0.0, ignore_eos=True, **more
    )


def prompt_ids(seed: int, num_tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 448, num_tokens).tolist()


def trie_size(rows: list[list[int]]) -> int:
    """Distinct prefixes of the rows: what must be computed, counted without the runtime."""
    return len({tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)})


def run(runtime: Any, prompts: list[list[int]], params: SamplingParams) -> list[Any]:
    branches = [runtime.new_branch() for _ in prompts]
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.extend(prompt)
    generations = [branch.generate(params) for branch in branches]
    results = [generation.result(TIMEOUT) for generation in generations]
    for branch in branches:
        branch.release()
    return results


# ---- what is computed, and what is held


def test_fork_of_32_computes_and_holds_unique_tokens_only(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=8192, debug=False)
    prefix = prompt_ids(0, 1024)
    suffixes = [prompt_ids(i, 5 + i % 7) for i in range(1, 33)]
    root = runtime.new_branch()
    root.extend(prefix)
    children = root.fork(32)
    for child, suffix in zip(children, suffixes, strict=True):
        child.extend(suffix)
    generations = [child.generate(greedy(16)) for child in children]
    rows = [
        prefix + suffix + list(generation.result(TIMEOUT).token_ids)
        for suffix, generation in zip(suffixes, generations, strict=True)
    ]
    stats = runtime.stats()
    assert stats.num_computed_tokens == trie_size([prefix + suffix for suffix in suffixes])
    assert stats.num_prompt_tokens == sum(len(prefix) + len(suffix) for suffix in suffixes)
    # The last token of a generation has no keys and values.
    unique = trie_size([row[:-1] for row in rows])
    bytes_per_token = runtime.loaded.config.kv_bytes_per_token
    assert unique * bytes_per_token <= stats.kv_bytes_peak <= 1.02 * unique * bytes_per_token
    for branch in (root, *children):
        branch.release()


def test_batch_with_a_shared_prefix_computes_each_edge_once(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=20_000, debug=False, max_batch_tokens=96)
    groups = [prompt_ids(i, 150) for i in range(10)]
    prompts = [group + prompt_ids(1000 + 22 * g + i, 4) for g, group in enumerate(groups)
               for i in range(22)]  # fmt: skip
    run(runtime, prompts, greedy(1))
    assert runtime.stats().num_computed_tokens == trie_size(prompts)


def test_identical_prompts_are_computed_once_to_the_last_token(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    prompt = prompt_ids(1, 40)
    results = run(runtime, [prompt] * 12, greedy(6))
    assert runtime.stats().num_computed_tokens == 40
    assert len({result.token_ids for result in results}) == 1
    again = run(runtime, [prompt], greedy(6))
    assert again[0].usage.num_cached_tokens == 40
    assert again[0].token_ids == results[0].token_ids


def test_cold_warm_alone_and_batched_results_are_equal(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    prompts = [prompt_ids(i, 20 + i) for i in range(6)]
    batched = [result.token_ids for result in run(runtime, prompts, greedy(12))]
    warm = [result.token_ids for result in run(runtime, prompts, greedy(12))]
    runtime.flush_cache()
    alone = [run(runtime, [prompt], greedy(12))[0].token_ids for prompt in prompts]
    assert batched == warm == alone


def test_generated_tokens_are_found_again_by_the_next_turn(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend(prompt_ids(2, 30))
    branch.generate(greedy(10)).result(TIMEOUT)
    branch.extend(prompt_ids(3, 5))
    usage = branch.generate(greedy(2)).result(TIMEOUT).usage
    assert (usage.num_cached_tokens, usage.num_computed_tokens) == (39, 6)
    branch.release()


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_results_do_not_depend_on_the_page_size(make_runtime: MakeRuntime, page_size: int) -> None:
    prompts = [prompt_ids(i % 3, 12) + prompt_ids(50 + i, 7) for i in range(9)]
    small = make_runtime(page_size=page_size, num_pages=4096 // page_size)
    expected = run(make_runtime(), prompts, greedy(9))
    assert [r.token_ids for r in run(small, prompts, greedy(9))] == [r.token_ids for r in expected]


def test_prompt_computed_in_chunks_gives_the_same_tokens(make_runtime: MakeRuntime) -> None:
    prompts = [prompt_ids(i, 90) for i in range(3)]
    whole = run(make_runtime(), prompts, greedy(8))
    chunked = run(make_runtime(max_batch_tokens=7), prompts, greedy(8))
    assert [r.token_ids for r in chunked] == [r.token_ids for r in whole]


def test_seeded_samples_are_the_same_in_any_company(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    params = SamplingParams(max_tokens=12, temperature=1.0, top_p=0.9, seed=11, ignore_eos=True)
    prompt = prompt_ids(5, 10)
    alone = run(runtime, [prompt], params)[0].token_ids
    company = run(runtime, [prompt_ids(6, 30), prompt, prompt_ids(7, 3)], params)
    assert company[1].token_ids == alone


def test_namespaces_share_neither_memory_nor_time(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    prompt = prompt_ids(8, 50)
    cached = []
    for namespace in ("a", "b", "a"):
        branch = runtime.new_branch(namespace=namespace)
        branch.extend(prompt)
        cached.append(branch.generate(greedy(2)).result(TIMEOUT).usage.num_cached_tokens)
        branch.release()
    assert cached == [0, 0, 50]


def test_flush_drops_what_nobody_holds(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    kept = runtime.new_branch()
    kept.extend(prompt_ids(9, 20))
    kept.generate(greedy(1)).result(TIMEOUT)
    run(runtime, [prompt_ids(10, 30)], greedy(1))
    assert runtime.flush_cache() == 30
    stats = runtime.stats()
    assert (stats.num_tree_tokens, stats.num_protected_tokens) == (20, 20)
    kept.release()
    runtime.flush_cache()
    assert runtime.stats().num_pages_free == runtime.stats().num_pages_total


def test_stats_read_by_name_and_as_a_mapping(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    run(runtime, [prompt_ids(11, 10)], greedy(3))
    stats = runtime.stats()
    assert stats["num_computed_tokens"] == stats.num_computed_tokens == 10
    assert dict(stats)["num_generated_tokens"] == 3
    with pytest.raises(KeyError, match="num_prompt_tokens"):
        stats["num_promt_tokens"]
    runtime.reset_stats()
    assert runtime.stats().num_prompt_tokens == 0
    assert runtime.stats().kv_bytes_peak == runtime.stats().kv_bytes_used > 0


def test_tree_is_drawn_in_text(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("The theatre in the north")
    branch.generate(greedy(2)).result(TIMEOUT)
    assert "The theatre in the north" in runtime.tree_text()
    branch.release()


def test_profile_has_the_engines_own_python_and_no_more_than_the_time_that_passed(
    make_runtime: MakeRuntime,
) -> None:
    start = time.perf_counter()
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("The theatre in the north")
    branch.generate(greedy(2)).result(TIMEOUT)
    branch.release()

    found = runtime.profile()
    assert found.pop("num_steps") >= 2
    assert min(found[part] for part in ("plan", "model", "sampling", "tree", "other")) > 0
    assert sum(found.values()) < time.perf_counter() - start


# ---- scoring


def reference_logprobs(runtime: Any, tokens: list[int]) -> list[float]:
    """Log-probability of each token after the first, from one fresh forward pass."""
    branch = runtime.new_branch(namespace=f"reference {len(tokens)} {sum(tokens)}")
    branch.extend(tokens[:1])
    values = []
    for token in tokens[1:]:
        params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=True, top_logprobs=100,
                                ignore_eos=True, heal=False)  # fmt: skip
        (probe,) = branch.fork(1)
        top = dict(probe.generate(params).result(TIMEOUT).logprobs[0].top)
        values.append(top.get(token, -np.inf))
        probe.release()
        branch.extend([token])
    branch.release()
    return values


def test_scores_equal_those_of_the_options_one_by_one(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("The capital of France is")
    base = list(branch.tokens().result(TIMEOUT))
    scores = branch.score([" Paris", " Rome", " the moon", " the town", " Paris"]).result(TIMEOUT)
    assert scores[0] == scores[4]
    for score in scores:
        expected = reference_logprobs(runtime, base + list(score.token_ids))[len(base) - 1 :]
        known = np.isfinite(expected)
        np.testing.assert_allclose(np.array(score.logprobs)[known], np.array(expected)[known],
                                   atol=1e-4)  # fmt: skip
    branch.release()


def test_scoring_computes_every_distinct_inner_token_once(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend(prompt_ids(12, 30))
    words = ["north", "nor", "town", "theatre", "the", "theme", "every night", "every day"]
    options = [f"{a} {b}" for a in words for b in words]
    scores = branch.score(options).result(TIMEOUT)
    unique = trie_size([list(score.token_ids[:-1]) for score in scores])
    assert runtime.stats().num_computed_tokens == 30 + unique
    assert branch.tokens().result(TIMEOUT) == tuple(prompt_ids(12, 30))
    branch.release()


def test_ten_thousand_options_are_scored(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=30_000, debug=False)
    branch = runtime.new_branch()
    branch.extend("Numbers: ")
    scores = branch.score([str(i) for i in range(10_000)]).result(TIMEOUT)
    assert len(scores) == 10_000
    assert all(np.isfinite(score.total) for score in scores)
    branch.release()


def test_token_ids_score_as_one_forward_pass_says(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    base, options = prompt_ids(12, 30), [prompt_ids(3, 9), [*prompt_ids(3, 9)[:5], 7, 8], []]
    branch.extend(base)
    runtime.reset_stats()
    scores = branch.score(options).result(TIMEOUT)
    unique = trie_size([option[:-1] for option in options])
    assert runtime.stats().num_computed_tokens == len(base) + unique
    for score, option in zip(scores, options, strict=True):
        expected = reference_logprobs(runtime, base + option)[len(base) - 1 :]
        known = np.isfinite(expected)
        np.testing.assert_allclose(np.array(score.logprobs)[known], np.array(expected)[known],
                                   atol=1e-5)  # fmt: skip
    branch.release()


def test_cached_tokens_change_no_score(make_runtime: MakeRuntime) -> None:
    """Scoring a text from its first token on finds it in the cache and needs its logits still."""
    runtime = make_runtime()
    tokens = prompt_ids(4, 40)
    found = []
    for _ in range(2):
        branch = runtime.new_branch()
        branch.extend(tokens[:1])
        found.append(branch.score([tokens[1:]]).result(TIMEOUT)[0])
        branch.release()
        whole = runtime.new_branch()  # now all of it is cached
        whole.extend(tokens)
        whole.generate(SamplingParams(max_tokens=1, heal=False)).result(TIMEOUT)
        whole.release()
    assert found[0] == found[1]
    assert len(found[1].logprobs) == 39


def test_the_last_token_of_an_option_needs_no_room(
    make_runtime: MakeRuntime, tiny_model: Any
) -> None:
    config = replace(tiny_model.config, context_length=16)
    runtime = make_runtime(replace(tiny_model, config=config))
    branch = runtime.new_branch()
    branch.extend(prompt_ids(5, 10))
    assert len(branch.score([prompt_ids(6, 7)]).result(TIMEOUT)[0].logprobs) == 7
    with pytest.raises(PromptTooLongError, match="17 tokens"):
        branch.score([prompt_ids(6, 8)]).result(TIMEOUT)


@pytest.mark.parametrize("wrong", [-1, 480, 1 << 40])
def test_token_ids_outside_the_vocabulary_are_not_scored(
    make_runtime: MakeRuntime, wrong: int
) -> None:
    branch = make_runtime().new_branch()
    branch.extend("Once")
    with pytest.raises(ParameterError, match=f"token id {wrong} is not in this model's"):
        branch.score([[1, 2], [3, wrong]])
    branch.release()


def test_scoring_after_nothing_is_refused(make_runtime: MakeRuntime) -> None:
    branch = make_runtime().new_branch()
    with pytest.raises(ParameterError, match="empty prompt"):
        branch.score(["a", "b"]).result(TIMEOUT)


# ---- constraints


def test_constraint_forces_tokens_without_sampling(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("Answer:")
    constraint = runtime.compile_constraint(Regex(r" the (north|town) plays every night"))
    completion = branch.generate(SamplingParams(max_tokens=60), constraint).result(TIMEOUT)
    assert completion.text in (" the north plays every night", " the town plays every night")
    assert completion.finish_reason == "constraint"
    assert completion.usage.num_forced_tokens > 0
    assert runtime.stats().num_forced_tokens == completion.usage.num_forced_tokens
    branch.release()


def test_forced_tokens_have_logprobs_when_asked(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("Answer:")
    base = list(branch.tokens().result(TIMEOUT))
    constraint = runtime.compile_constraint(Regex(r" the (north|town) plays"))
    params = SamplingParams(max_tokens=60, temperature=0.0, logprobs=True)
    completion = branch.generate(params, constraint).result(TIMEOUT)
    found = [entry.logprob for entry in completion.logprobs]
    assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)
    expected = reference_logprobs(runtime, base + list(completion.token_ids))[len(base) - 1 :]
    known = np.isfinite(expected)
    np.testing.assert_allclose(np.array(found)[known], np.array(expected)[known], atol=1e-4)
    branch.release()


def test_wholly_forced_text_needs_no_step(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("Answer:")
    constraint = runtime.compile_constraint(Regex("only this"))
    completion = branch.generate(SamplingParams(max_tokens=60), constraint).result(TIMEOUT)
    assert completion.text == "only this"
    assert runtime.stats().num_steps == 0
    branch.release()


def test_truncated_constraint_raises_with_the_partial_text(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("Answer:")
    constraint = runtime.compile_constraint(Regex("[a-z]{200}"))
    error = branch.generate(SamplingParams(max_tokens=3), constraint).exception(TIMEOUT)
    assert isinstance(error, IncompleteError)
    assert error.partial.isalpha()
    branch.release()


def test_constraint_that_was_not_compiled_is_refused(make_runtime: MakeRuntime) -> None:
    branch = make_runtime().new_branch()
    branch.extend("text")
    with pytest.raises(ParameterError, match="compile_constraint"):
        branch.generate(greedy(1), constraint="[0-9]+").result(TIMEOUT)


# ---- bad input: an error of our own, that request only, a clean audit


def still_serves(runtime: Any) -> bool:
    return len(run(runtime, [prompt_ids(99, 5)], greedy(2))[0].token_ids) == 2


def test_prompt_longer_than_the_context(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend(prompt_ids(13, 2048))
    with pytest.raises(PromptTooLongError, match=r"2048 tokens .* context is 2048"):
        branch.generate(greedy(1)).result(TIMEOUT)
    assert still_serves(runtime)


def test_generation_ends_at_the_context(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    completion = run(runtime, [prompt_ids(14, 2040)], SamplingParams(max_tokens=50))[0]
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == 8


def test_empty_prompt_is_refused(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    with pytest.raises(ParameterError, match="prompt is empty"):
        runtime.new_branch().generate(greedy(1)).result(TIMEOUT)
    assert still_serves(runtime)


def test_request_that_can_never_fit_fails_at_once(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=64)
    branch = runtime.new_branch()
    branch.extend(prompt_ids(15, 65))
    with pytest.raises(PoolExhaustedError, match=r"65 tokens .* holds 64.*kv_bytes="):
        branch.generate(greedy(1)).result(TIMEOUT)
    assert still_serves(runtime)


def test_pool_too_small_for_anything_is_refused(tiny_model: Any) -> None:
    with pytest.raises(ParameterError, match=r"kv_bytes=\d+"):
        Runtime(tiny_model, kv_bytes=1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_sise": 4}, "page_size"),
        ({"max_running": 0}, "max_running"),
        ({"num_pages": 64, "kv_bytes": 1 << 20}, "not both"),
        ({"eviction": "lfu"}, "lru"),
        ({"order": "random"}, "depth_first"),
        ({"page_size": 0}, "page_size"),
    ],
)
def test_wrong_arguments_name_the_right_ones(
    tiny_model: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        Runtime(tiny_model, **options)


def test_unknown_model_is_refused() -> None:
    with pytest.raises(ModelNotFoundError):
        Runtime("./no-such-model")


class PoisonedModel:
    """The model, except that it turns one token into NaN, or raises on another."""

    def __init__(self, model: Any, nan_id: int = -1, raise_id: int = -1) -> None:
        self._model = model
        self.config, self.device = model.config, model.device
        self.num_weight_bytes = model.num_weight_bytes
        self.batch_invariant = model.batch_invariant
        self.library = model.library
        self.nan_id, self.raise_id = nan_id, raise_id

    def forward(self, input_ids: torch.Tensor, positions: Any, plan: Any, kv: Any) -> torch.Tensor:
        if bool((input_ids == self.raise_id).any()):
            raise RuntimeError("out of memory, say")
        hidden: torch.Tensor = self._model.forward(input_ids, positions, plan, kv)
        hidden[input_ids == self.nan_id] = torch.nan
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model.logits(hidden)
        return logits


def poisoned(model: Any, **ids: int) -> Any:
    return replace(model, model=PoisonedModel(model.model, **ids))


def test_nan_fails_its_request_only_and_is_never_cached(
    make_runtime: MakeRuntime, tiny_model: Any
) -> None:
    runtime = make_runtime(poisoned(tiny_model, nan_id=7))
    branches = [runtime.new_branch() for _ in range(3)]
    for index, branch in enumerate(branches):
        branch.extend([20 + index, 30, 7 if index == 1 else 31, 32])
    generations = [branch.generate(greedy(1)) for branch in branches]
    assert isinstance(generations[1].exception(TIMEOUT), NumericalError)
    assert all(len(generations[i].result(TIMEOUT).token_ids) == 1 for i in (0, 2))
    assert runtime.stats().num_tree_tokens == 8
    for branch in branches:
        branch.release()


def test_failing_step_fails_its_requests_and_the_engine_goes_on(
    make_runtime: MakeRuntime, tiny_model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = make_runtime(poisoned(tiny_model, raise_id=9))
    branch = runtime.new_branch()
    branch.extend([9, 10, 11])
    with pytest.raises(RequestError, match="out of memory, say"):
        branch.generate(greedy(1)).result(TIMEOUT)
    assert "a step of the engine failed" in caplog.text
    assert still_serves(runtime)


@pytest.mark.parametrize("content", [[500], [-1], 3.5, [1.5], None, [["a"]]])
def test_what_is_no_text_and_no_token_is_refused(make_runtime: MakeRuntime, content: Any) -> None:
    with pytest.raises(ParameterError):
        make_runtime().new_branch().extend(content)


# ---- cancelling, deadlines, the end


def test_cancel_frees_everything_in_every_state(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(max_batch_tokens=16, max_running=2)
    endless = SamplingParams(max_tokens=1900, min_tokens=1900, ignore_eos=True)
    branches = [runtime.new_branch() for _ in range(6)]
    for index, branch in enumerate(branches):
        branch.extend(prompt_ids(20, 60) + prompt_ids(21 + index, 20))
    generations = [branch.generate(endless) for branch in branches]
    next(iter(generations[0]))  # one decodes; others wait, are parked or in the middle of a chunk
    for generation in generations:
        assert generation.cancel()
    for generation in generations:
        assert isinstance(generation.exception(TIMEOUT), CancelledError)
    for branch in branches:
        branch.release()
    runtime.flush_cache()
    stats = runtime.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_branches) == (0, 0, 0)
    assert stats.num_pages_free == stats.num_pages_total


def test_deltas_are_kept_back_until_somebody_asks_or_all_is_over(
    make_runtime: MakeRuntime,
) -> None:
    runtime = make_runtime()
    endless = SamplingParams(max_tokens=1900, min_tokens=1900, ignore_eos=True)
    branches = [runtime.new_branch() for _ in range(2)]
    for branch in branches:
        branch.extend(prompt_ids(20, 8))
    asked, unasked = (branch.generate(endless) for branch in branches)
    while runtime.stats().num_generated_tokens < 60:
        pass
    assert len(next(iter(asked)).token_ids) > 10
    for generation in (asked, unasked):
        assert generation.cancel()
        assert isinstance(generation.exception(TIMEOUT), CancelledError)
        assert sum(len(delta.token_ids) for delta in generation.deltas) > 10
        text = "".join(delta.text for delta in generation.deltas)
        ids = [token for delta in generation.deltas for token in delta.token_ids]
        assert text == runtime.decode(ids)


def test_cancel_at_every_chunk_leaks_nothing(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(max_batch_tokens=5)
    for num_steps in range(1, 9):
        branch = runtime.new_branch()
        branch.extend(prompt_ids(40 + num_steps, 33))
        generation = branch.generate(greedy(4))
        seen = runtime.stats().num_steps
        while not generation.done() and runtime.stats().num_steps < seen + num_steps:
            pass
        branch.cancel()
        assert generation.exception(TIMEOUT) is None or generation.exception(TIMEOUT)
    runtime.flush_cache()
    assert runtime.stats().num_pages_free == runtime.stats().num_pages_total


def test_deadline_fails_a_running_and_a_queued_request(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend(prompt_ids(50, 8))
    params = SamplingParams(max_tokens=2000, min_tokens=2000, ignore_eos=True)
    running = branch.generate(params, timeout_s=0.05)
    queued = branch.generate(params, timeout_s=0.05)
    assert isinstance(running.exception(TIMEOUT), DeadlineError)
    assert isinstance(queued.exception(TIMEOUT), DeadlineError)
    branch.release()
    assert still_serves(runtime)


def test_released_branch_refuses_work(make_runtime: MakeRuntime) -> None:
    branch = make_runtime().new_branch()
    branch.release()
    assert isinstance(branch.generate(greedy(1)).exception(TIMEOUT), StateClosedError)


def test_dropped_handles_release_their_branches(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("text")
    branch.generate(greedy(1)).result(TIMEOUT)
    children = branch.fork(50)
    assert len(children[-1].tokens().result(TIMEOUT)) > 1
    del branch, children
    runtime.flush_cache()
    assert runtime.stats().num_branches == 0


def test_failing_callback_does_not_stop_the_engine(
    make_runtime: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("text")
    generation = branch.generate(greedy(3))

    def fail(_: Any) -> None:
        raise ValueError("from a reader")

    generation.add_done_callback(fail)
    generation.subscribe(fail)
    assert len(generation.result(TIMEOUT).token_ids) == 3
    assert still_serves(runtime)
    assert "from a reader" in caplog.text
    branch.release()


def test_callback_may_ask_the_runtime(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    asked: Future[list[Any]] = Future()
    branch = runtime.new_branch()
    branch.extend("text")
    branch.generate(greedy(1)).add_done_callback(lambda _: asked.set_result(runtime.audit()))
    assert asked.result(TIMEOUT) == []
    branch.release()


def test_close_fails_everything_pending(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branches = [runtime.new_branch() for _ in range(3)]
    params = SamplingParams(max_tokens=1900, min_tokens=1900, ignore_eos=True)
    pending: list[Any] = []
    for branch in branches:
        branch.extend("text")
        pending += [branch.generate(params), branch.generate(params), branch.score(["a", "b"])]
    runtime.close()
    assert all(isinstance(each.exception(TIMEOUT), RuntimeClosedError) for each in pending)
    after = branches[0].generate(params)
    assert isinstance(after.exception(TIMEOUT), RuntimeClosedError)
    with pytest.raises(RuntimeClosedError):
        runtime.new_branch()


@pytest.mark.parametrize("ending", ["", "del runtime, branch, generation", "raise SystemExit(0)"])
def test_exit_with_work_pending_does_not_hang(ending: str, tiny_model: Any) -> None:
    conftest = Path(__file__).parents[1] / "conftest.py"
    code = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("tiny", {str(conftest)!r})
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
from radixlang.sampling_params import SamplingParams
from radixlang.runtime import Runtime
runtime = Runtime(tiny.make_tiny_model(), num_pages=4096)
branch = runtime.new_branch()
branch.extend("text")
generation = branch.generate(SamplingParams(max_tokens=2000, min_tokens=2000, ignore_eos=True))
next(iter(generation))
{ending}
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_threads_post_at_once_and_each_gets_its_own(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(debug=False)
    expected = {i: run(runtime, [prompt_ids(i, 6)], greedy(5))[0].token_ids for i in range(4)}
    found: dict[int, list[Any]] = {i: [] for i in range(4)}

    def work(index: int) -> None:
        for _ in range(10):
            found[index] += [run(runtime, [prompt_ids(index, 6)], greedy(5))[0].token_ids]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert found == {i: [expected[i]] * 10 for i in range(4)}


def test_threads_take_turns_often_while_a_step_runs(make_runtime: MakeRuntime) -> None:
    """Beside a thread that is busy in Python a step would wait for each of its calls."""
    usual = sys.getswitchinterval()
    runtime = make_runtime(debug=False)
    step, found = runtime.core._step.run, []

    def watched() -> None:
        found.append(sys.getswitchinterval())
        step()

    runtime.core._step.run = watched
    run(runtime, [prompt_ids(0, 8)], greedy(4))
    runtime.core.call(lambda: None)
    assert found == pytest.approx([SWITCH_S] * len(found))
    assert len(found) >= 4
    assert sys.getswitchinterval() == usual
