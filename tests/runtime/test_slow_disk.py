"""A disk that hangs or lags: prompts wait for it a bounded time, and nobody else waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixlang.errors import CancelledError, DeadlineError
from radixlang.protocol import Contrast
from radixlang.runtime.disk.block_store import BlockStore, TokenBlock
from radixlang.runtime.disk.block_writer import BlockWriter
from radixlang.runtime.disk.buffers import Buffers
from radixlang.sampling_params import SamplingParams

FEW = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
TIMEOUT = 60


class Gate:
    """Stands before a method of the store: calls wait until it is open."""

    def __init__(self) -> None:
        self.open, self.reached = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.open.wait(TIMEOUT)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Gate]]:
    made: list[Gate] = []

    def before(method: str) -> Gate:
        gate = Gate()
        made.append(gate)
        real = getattr(BlockStore, method)

        def gated(self: BlockStore, *args: Any) -> Any:
            gate.pass_through()
            return real(self, *args)

        monkeypatch.setattr(BlockStore, method, gated)
        return gate

    yield before
    for each in made:
        each.open.set()


def prompt_ids(num: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 440, num)]


def begun(runtime: Any, ids: list[int], timeout_s: float | None = None) -> Any:
    branch = runtime.new_branch()
    branch.extend(ids)
    return branch, branch.generate(FEW, timeout_s=timeout_s)


def test_one_that_runs_goes_on_while_another_prompt_is_read(
    make_runtime: Callable[..., Any], tmp_path: Path, gate: Callable[[str], Gate]
) -> None:
    runtime = make_runtime(disk=tmp_path)
    first = runtime.new_branch()
    first.extend(prompt_ids(5))
    running = first.generate(SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True))
    deltas = iter(running)
    next(deltas)
    closed = gate("read")
    _, read = begun(runtime, prompt_ids(200, 1))
    assert closed.reached.wait(TIMEOUT)
    for _ in range(3):
        next(deltas)
    assert not read.done()
    assert runtime.stats().num_waiting == 1
    closed.open.set()
    assert len(read.result(TIMEOUT).token_ids) == 4
    running.cancel()


def test_two_that_advance_together_wait_for_the_one_that_is_read(
    make_runtime: Callable[..., Any], tmp_path: Path
) -> None:
    """One of a pair runs while the prompt of the other is read."""

    def contrasts(runtime: Any) -> list[tuple[int, ...]]:
        asked = []
        for seed in range(10):
            one, other = runtime.new_branch(), runtime.new_branch()
            one.extend(prompt_ids(40, seed))
            other.extend(prompt_ids(90, 100 + seed))
            asked.append((one.contrast(other, FEW, Contrast(1.5, 0.0)), one, other))
        return [each.result(TIMEOUT).token_ids for each, *_ in asked]

    expected = contrasts(make_runtime())
    first = make_runtime(disk=tmp_path)
    assert contrasts(first) == expected
    first.close()
    assert contrasts(make_runtime(disk=tmp_path)) == expected


def test_deadlines_and_cancellation_hold_while_a_prompt_is_read(
    make_runtime: Callable[..., Any], tmp_path: Path, gate: Callable[[str], Gate]
) -> None:
    runtime = make_runtime(disk=tmp_path)
    closed = gate("read")
    branch, read = begun(runtime, prompt_ids(200))
    assert closed.reached.wait(TIMEOUT)
    branch.cancel()
    with pytest.raises(CancelledError):
        read.result(TIMEOUT)
    late, read = begun(runtime, prompt_ids(200), timeout_s=0.2)
    with pytest.raises(DeadlineError):
        read.result(TIMEOUT)
    late.release()
    assert runtime.stats().num_waiting == 0


def test_a_disk_that_hangs_costs_a_bounded_wait_once(
    make_runtime: Callable[..., Any], tmp_path: Path, gate: Callable[[str], Gate],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("radixlang.runtime.scheduling.read_ahead.MAX_WAIT_S", 0.2)
    monkeypatch.setattr("radixlang.runtime.disk.block_reader.JOIN_S", 0.1)
    expected = begun(make_runtime(), prompt_ids(200))[1].result(TIMEOUT).token_ids
    runtime = make_runtime(disk=tmp_path)
    closed = gate("read")
    held = [begun(runtime, prompt_ids(200))[1] for _ in range(3)]
    assert {each.result(TIMEOUT).token_ids for each in held} == {expected}
    # Nothing is asked of it now, so this one is not held at all.
    assert len(begun(runtime, prompt_ids(200, 2))[1].result(TIMEOUT).token_ids) == 4
    assert not closed.open.is_set()
    runtime.close()


def test_a_disk_that_hangs_holds_nobody_while_others_run(
    make_runtime: Callable[..., Any], tmp_path: Path, gate: Callable[[str], Gate],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("radixlang.runtime.scheduling.read_ahead.MAX_WAIT_S", 0.1)
    runtime = make_runtime(disk=tmp_path)
    first = runtime.new_branch()
    first.extend(prompt_ids(5))
    running = first.generate(SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True))
    next(iter(running))
    gate("read")
    _, read = begun(runtime, prompt_ids(100, 1))
    assert len(read.result(TIMEOUT).token_ids) == 4
    running.cancel()


def test_a_lagging_disk_is_written_to_later_and_read_from_memory(
    make_runtime: Callable[..., Any], tmp_path: Path, gate: Callable[[str], Gate]
) -> None:
    runtime = make_runtime(disk=tmp_path, num_pages=300)
    closed = gate("write")
    expected = begun(runtime, prompt_ids(128))[1].result(TIMEOUT)
    for seed in range(1, 4):
        branch, other = begun(runtime, prompt_ids(200, seed))
        other.result(TIMEOUT)
        branch.release()
    assert closed.reached.is_set()
    assert runtime.stats().num_evicted_tokens > 200
    again = begun(runtime, prompt_ids(128))[1].result(TIMEOUT)
    assert again.token_ids == expected.token_ids
    assert again.usage.num_cached_tokens >= 127
    closed.open.set()
    runtime.close()


def test_a_full_queue_drops_what_is_offered_and_waits_only_where_it_must(
    tmp_path: Path, gate: Callable[[str], Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixlang.runtime.disk.block_writer.MAX_WAITED_BYTES", 3_000)
    store = BlockStore(tmp_path, 1 << 20)
    writer = BlockWriter(store, Buffers(0, 1), max_bytes=3_000)
    closed = gate("write")

    def block(value: int) -> TokenBlock:
        return TokenBlock(np.full(1, value, np.int32), np.full(1000, value, np.uint8))

    assert [writer.put(f"b{n}", block(n)) for n in range(5)] == [True, True, False, False, False]
    assert writer.num_dropped == 3
    waits = threading.Thread(target=writer.put, args=("b5", block(5)), kwargs={"must": True})
    waits.start()
    found = writer.read("b1")
    assert found is not None
    assert found.payload.tobytes() == bytes([1]) * 1000
    closed.open.set()
    waits.join(TIMEOUT)
    writer.drain()
    kept = [number for number in range(6) if store.read(f"b{number}") is not None]
    assert kept == [0, 1, 5]
