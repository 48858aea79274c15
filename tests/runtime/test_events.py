"""The stream of events: what is told, in which order, and to whom."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from radixlang.runtime.metrics.events import EngineEvent
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60
MakeRuntime = Callable[..., Any]
EIGHT = SamplingParams(max_tokens=8, min_tokens=8, temperature=0.0, ignore_eos=True)


def settle(runtime: Any) -> None:
    """Wait until listeners have been told what happened so far."""
    runtime.core.call(lambda: None)
    assert runtime.core.memory.events.settle(TIMEOUT)


def run(runtime: Any, prompt: list[int]) -> None:
    branch = runtime.new_branch()
    branch.extend(prompt)
    branch.generate(EIGHT).result(TIMEOUT)
    branch.release()
    settle(runtime)


def told(events: list[EngineEvent]) -> list[tuple[str, int]]:
    return [(event.kind, event.num_tokens) for event in events]


def test_a_request_from_admission_to_its_end(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    events: list[EngineEvent] = []
    stop = runtime.on_event(events.append)
    run(runtime, list(range(3, 23)))
    assert told(events) == [("admit", 0), ("insert", 20), ("finish", 8), ("insert", 7)]
    assert all(event.holder.startswith("generation on branch ") for event in events)
    assert [event.time_s for event in events] == sorted(event.time_s for event in events)
    events.clear()
    run(runtime, [*range(3, 23), 30])
    assert told(events)[:2] == [("admit", 20), ("insert", 1)]
    events.clear()
    stop()
    stop()
    run(runtime, [5])
    assert events == []


def test_scorings_and_failures(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    events: list[EngineEvent] = []
    runtime.on_event(events.append)
    branch = runtime.new_branch()
    branch.extend("the town")
    branch.score([" sleeps", " plays"]).result(TIMEOUT)
    settle(runtime)
    assert told(events)[-1] == ("finish", 0)
    assert events[-1].holder.startswith("scoring on branch ")
    long = SamplingParams(max_tokens=1000, min_tokens=1000, ignore_eos=True)
    generation = branch.generate(long)
    next(iter(generation))
    branch.cancel()
    generation.exception(TIMEOUT)
    settle(runtime)
    (failed,) = [event for event in events if event.kind == "fail"]
    assert failed.num_tokens >= 1


def test_pressure_is_told_in_tokens(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=100)
    events: list[EngineEvent] = []
    runtime.on_event(events.append)
    for seed in range(6):
        run(runtime, [3 + seed, *range(20, 60)])
    num_tokens = sum(event.num_tokens for event in events if event.kind == "evict")
    assert num_tokens == runtime.stats().num_evicted_tokens > 0
    runtime.flush_cache()
    settle(runtime)
    assert events[-1].kind == "evict"


def test_retract_and_the_8_bit_tier(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=60, cold_tokens=40)
    kinds: set[str] = set()
    runtime.on_event(lambda event: kinds.add(event.kind))
    branches = [runtime.new_branch() for _ in range(3)]
    params = SamplingParams(max_tokens=30, min_tokens=30, temperature=0.0, ignore_eos=True)
    for number, branch in enumerate(branches):
        branch.extend([3 + number, *range(20, 28)])
    for generation in [branch.generate(params) for branch in branches]:
        generation.result(TIMEOUT)
    for branch in branches:
        branch.release()
    settle(runtime)
    assert {"admit", "finish", "insert", "retract", "quantize"} <= kinds


def test_compaction_is_told(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    events: list[EngineEvent] = []
    runtime.core.upkeep.compactor.every_inserts = 2
    runtime.on_event(events.append)
    for seed in range(8):
        run(runtime, [3, 4, 5, 6, 7, 8 + seed % 2, *range(20, 24 + seed)])
    moved = sum(event.num_tokens for event in events if event.kind == "compact")
    assert moved == runtime.core.upkeep.compactor.num_moved_tokens > 0


def test_a_listener_that_raises_disturbs_nobody(
    make_runtime: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = make_runtime()
    events: list[EngineEvent] = []

    def fail(event: EngineEvent) -> None:
        raise ValueError("not today")

    runtime.on_event(fail)
    runtime.on_event(events.append)
    with caplog.at_level(logging.ERROR, "radixlang.runtime"):
        run(runtime, [5, 6, 7])
    assert [event.kind for event in events][-1] == "insert"
    assert "a listener of the runtime's events failed" in caplog.text


def test_nothing_is_noted_while_nobody_listens(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    run(runtime, [5, 6, 7])
    assert runtime.core.memory.events._pending == []
