"""Prebuilt prefixes, new weights, cold nodes, compaction and the audit at rest."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixlang.errors import ParameterError, PoolExhaustedError, PromptTooLongError
from radixlang.runtime.cache.compaction import fragmentation
from radixlang.runtime.diagnostics.invariants import Violation
from radixlang.runtime.engine.idle_tasks import Upkeep
from radixlang.runtime.scheduling import scheduler
from radixlang.sampling_params import SamplingParams
from tests.conftest import make_tiny_model

TIMEOUT = 60
MakeRuntime = Callable[..., Any]
GREEDY = SamplingParams(max_tokens=12, min_tokens=12, temperature=0.0, ignore_eos=True)


def ids(seed: int, num_tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 448, num_tokens).tolist()


def run(runtime: Any, prompt: list[int], params: SamplingParams = GREEDY) -> Any:
    branch = runtime.new_branch()
    branch.extend(prompt)
    completion = branch.generate(params).result(TIMEOUT)
    branch.release()
    return completion


@pytest.fixture(scope="module")
def other_model() -> Any:
    """A model of the same shape with other weights."""
    return make_tiny_model(seed=1)


# ---- prebuilt prefixes


def test_prebuilt_prefix_survives_a_flush_and_pressure(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=200)
    prefix = ids(0, 60)
    assert runtime.prebuild(prefix) == 60
    assert runtime.stats().num_pinned_tokens == 60
    runtime.flush_cache()
    for seed in range(1, 6):
        run(runtime, ids(seed, 90))
    assert run(runtime, prefix + ids(9, 3)).usage.num_cached_tokens == 60
    runtime.unpin()
    runtime.flush_cache()
    assert runtime.stats().num_tree_tokens == 0


def test_a_prefix_that_fits_nowhere_leaves_no_branch(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=64)
    for too_long, error in ((100, PoolExhaustedError), (5000, PromptTooLongError)):
        with pytest.raises(error):
            runtime.prebuild(ids(0, too_long))
    runtime.core.call(lambda: None)
    assert runtime.stats().num_branches == 0
    assert runtime.prebuild(ids(0, 20)) == 20


def test_prebuilt_prefixes_stay_under_the_cap(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(max_pinned_tokens=100)
    runtime.prebuild(ids(0, 70), name="first")
    with pytest.raises(PoolExhaustedError, match=r"max_pinned_tokens=100"):
        runtime.prebuild(ids(1, 70), name="second")
    runtime.prebuild(ids(0, 70) + ids(2, 20), name="longer")  # shares the first one's tokens
    runtime.unpin("first")
    runtime.unpin("longer")
    assert runtime.prebuild("the town sleeps", name="text") > 0
    assert runtime.stats().num_protected_tokens == runtime.stats().num_pinned_tokens


# ---- weights


def test_new_weights_never_read_what_the_old_ones_computed(
    make_runtime: MakeRuntime, other_model: Any
) -> None:
    runtime, fresh = make_runtime(), make_runtime(other_model)
    prompt = ids(3, 40)
    before = run(runtime, prompt)
    runtime.prebuild(prompt)
    held = runtime.new_branch()
    held.extend(prompt)
    held.generate(GREEDY).result(TIMEOUT)
    runtime.update_weights(other_model)
    assert runtime.stats().num_tree_tokens == 0
    after = run(runtime, prompt)
    assert after.usage.num_cached_tokens == 0
    assert after.token_ids == run(fresh, prompt).token_ids != before.token_ids
    held.extend(ids(4, 3))
    assert 40 <= held.generate(GREEDY).result(TIMEOUT).usage.num_cached_tokens < 52
    held.release()


def test_weights_change_under_running_requests(make_runtime: MakeRuntime, other_model: Any) -> None:
    runtime = make_runtime(max_batch_tokens=32, max_running=2)
    long = SamplingParams(max_tokens=200, min_tokens=200, temperature=0.0, ignore_eos=True)
    branches = [runtime.new_branch() for _ in range(5)]
    for index, branch in enumerate(branches):
        branch.extend(ids(5, 30) + ids(10 + index, 10))
    generations = [branch.generate(long) for branch in branches]
    (fork,) = branches[0].fork(1)
    scored = fork.score(["the north", "the town"])
    next(iter(generations[0]))
    runtime.update_weights(other_model)
    late = next(i for i, generation in enumerate(generations) if not generation.done())
    for generation in generations:
        assert len(generation.result(TIMEOUT).token_ids) == 200
    # What was sampled after the change is what the new weights say after all that came before.
    tokens = list(branches[late].tokens().result(TIMEOUT))
    again = make_runtime(other_model)
    assert run(again, tokens[:-1], GREEDY.override(max_tokens=1, min_tokens=1)).token_ids == (
        tokens[-1],
    )
    assert [score.text for score in scored.result(TIMEOUT)] == ["the north", "the town"]
    for branch in (fork, *branches):
        branch.release()


def test_another_model_is_refused(make_runtime: MakeRuntime, tiny_model: Any) -> None:
    config = replace(tiny_model.config, context_length=64)
    with pytest.raises(ParameterError, match="context_length is 64"):
        make_runtime().update_weights(replace(tiny_model, config=config))


# ---- 8-bit nodes


def test_pressure_moves_nodes_to_8_bits_and_they_are_still_hits(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=150, cold_tokens=1000)
    exact = make_runtime()
    prompts = [ids(20 + i, 60) for i in range(6)]
    for prompt in prompts:
        run(runtime, prompt)
    assert runtime.stats().num_quantized_tokens > 0
    assert runtime.stats().num_evicted_tokens == 0
    again = run(runtime, prompts[0] + ids(30, 4))
    assert again.usage.num_cached_tokens == 60
    # 8 bits of a prefix hardly move what follows.
    params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=True, ignore_eos=True)
    pair = [run(r, prompts[1] + ids(31, 4), params).logprobs[0] for r in (runtime, exact)]
    assert pair[0].logprob == pytest.approx(pair[1].logprob, abs=0.2)


def test_idle_nodes_go_to_8_bits_by_themselves(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(cold_tokens=1000, cold_idle_s=0.0)
    run(runtime, ids(40, 50))
    quantized = threading.Event()
    runtime.core.call(lambda: None)
    for _ in range(100):
        if runtime.core.call(lambda: runtime.core.memory.num_cold):
            quantized.set()
            break
        runtime.core.call(runtime.core.memory.cold.quantize_idle)
        time.sleep(0.01)
    assert quantized.is_set()
    assert run(runtime, [*ids(40, 50), 5]).usage.num_cached_tokens == 50


# ---- compaction, and the audit at rest


def test_compaction_moves_nodes_under_running_requests(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "TAIL_RESERVE", 0)  # so that growing branches interleave
    prompts = [ids(50 + i % 4, 20) + ids(60 + i, 5 + i) for i in range(12)]
    expected = [run(make_runtime(), prompt).token_ids for prompt in prompts]
    runtime = make_runtime()
    runtime.core.upkeep.compactor.every_inserts = 2
    branches = [runtime.new_branch() for _ in prompts]
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.extend(prompt)
    generations = [branch.generate(GREEDY) for branch in branches]
    assert [generation.result(TIMEOUT).token_ids for generation in generations] == expected
    assert runtime.core.upkeep.compactor.num_moved_tokens > 0
    for branch in branches:
        branch.release()
    runtime.core.call(runtime.core.upkeep.compactor.compact)
    assert runtime.core.call(lambda: fragmentation(runtime.core.memory.tree)) < 0.1


def test_engine_at_rest_audits_once_and_then_sleeps() -> None:
    calls = []
    broken = Violation(1, "pages_add_up", "one page is missing")

    def audit() -> list[Violation]:
        calls.append(1)
        return [broken]

    upkeep = Upkeep(None, None, lambda: 0, audit, lambda: 10, lambda: calls.append(2))
    assert upkeep.wait_s() is None
    upkeep.after_step()
    assert upkeep.wait_s() is not None
    upkeep.at_rest()
    assert upkeep.wait_s() is None
    assert calls == [1, 2]
    assert upkeep.violations == [broken]
    upkeep.at_rest()
    assert calls == [1, 2]


def test_engine_at_rest_holds_no_memory_for_what_was_flushed(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(debug=False)
    core, cache = runtime.core, runtime.core.memory.cache
    branch = runtime.new_branch()
    branch.extend(ids(71, 300))
    branch.generate(GREEDY).result(TIMEOUT)
    run(runtime, ids(72, 300))
    owned = core.call(core.memory.pool.owned_slots)
    core.call(core.upkeep.at_rest)
    assert cache.is_written(owned).all()
    runtime.flush_cache()
    core.call(core.upkeep.at_rest)
    held = core.call(core.memory.pool.owned_slots)
    dropped = np.setdiff1d(owned, held)
    a_page = mmap.PAGESIZE // (cache.num_kv_heads * cache.head_dim * cache.dtype.itemsize)
    assert cache.is_written(held).all()
    assert len(dropped) > 2 * a_page
    assert not cache.is_written(dropped[a_page:]).any()  # before that it may share held ones' page
    branch.release()


def test_saved_prefix_is_loaded_into_another_runtime(
    make_runtime: MakeRuntime, tmp_path: Path
) -> None:
    from radixlang.runtime.saved_prefixes.store import load_prefix, save_prefix

    prompt = ids(70, 40)
    save_prefix(make_runtime(), prompt, tmp_path / "p.prefix")
    runtime = make_runtime()
    _, leases = load_prefix(runtime, tmp_path / "p.prefix")
    usage = run(runtime, [*prompt, 9]).usage
    assert (usage.num_cached_tokens, usage.num_computed_tokens) == (40, 1)
    runtime.core.call(lambda: [lease.release() for lease in leases])
