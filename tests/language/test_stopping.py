"""Ends before the end: a stream that its reader leaves, one answer that is stopped."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from radixlang import assistant, function, gen, select, user
from radixlang.errors import (
    CancelledError,
    IncompleteError,
    ParameterError,
    ProgramError,
    StateClosedError,
)
from radixlang.execution.run import Run
from radixlang.state.state import State

Make = Callable[..., Any]
LONG = "word " * 4000  # 40 s at a piece each 10 ms: no test waits for it


@pytest.fixture
def slow(fake: Make) -> Any:
    return fake(lambda prompt, params: LONG, delay=0.01, piece=5)


@function
def writes(s: State) -> None:
    s += "Write: " + gen("a", max_tokens=100_000) + " and " + gen("b", max_tokens=100_000)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def ended_by_its_reader(run: Run) -> bool:
    wait_until(lambda: run.finished)
    return isinstance(getattr(run.error, "__cause__", None), CancelledError)


# -- streams that are left ----------------------------------------------------------------


def test_a_broken_loop_ends_the_program_and_frees_its_branches(slow: Any) -> None:
    stream = writes.stream(runtime=slow)
    run = stream._run
    for event in stream:
        assert event.text
        break
    assert ended_by_its_reader(run)
    wait_until(lambda: slow.num_live_branches == 0)


@pytest.mark.parametrize("read", ["text", "variable"])
def test_every_iterator_of_a_stream_ends_it_when_it_is_left(slow: Any, read: str) -> None:
    stream = writes.stream(runtime=slow)
    iterator = stream.text() if read == "text" else stream.variable("a")
    next(iterator)
    del iterator
    assert ended_by_its_reader(stream._run)


def test_a_stream_that_nobody_holds_ends(slow: Any) -> None:
    stream = writes.stream(runtime=slow)
    run = stream._run
    del stream
    gc.collect()
    assert ended_by_its_reader(run)


def test_an_interrupt_in_the_readers_loop_ends_the_program(slow: Any) -> None:
    runs: list[Run] = []

    def reader() -> None:
        stream = writes.stream(runtime=slow)
        runs.append(stream._run)
        for _ in stream:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reader()
    assert ended_by_its_reader(runs[0])


def test_a_with_block_ends_its_stream(slow: Any) -> None:
    with writes.stream(runtime=slow) as stream:
        assert next(iter(stream.text())) == "Write: "
    assert ended_by_its_reader(stream._run)


def test_a_with_block_leaves_a_finished_program_as_it_is(fake: Make) -> None:
    with writes.stream(runtime=fake(["x", "y"])) as stream:
        assert "".join(stream.text()) == "Write: x and y"
    assert stream.state["b"] == "y"
    assert stream.state.error is None


def test_async_streams_end_with_their_reader_too(slow: Any) -> None:
    async def main() -> list[Run]:
        async with writes.stream(runtime=slow) as first:
            async for _ in first:
                break
        second = writes.stream(runtime=slow)
        async for _ in second.avariable("a"):
            break
        return [first._run, second._run]

    assert all(map(ended_by_its_reader, asyncio.run(main())))


def test_a_stream_goes_on_while_another_iterator_of_it_is_open(fake: Make) -> None:
    stream = writes.stream(runtime=fake(["some text", "more"], delay=0.001, piece=2))
    events = iter(stream)
    next(events)
    pieces = stream.text()
    next(pieces)
    del events
    assert "".join(["Write: ", *pieces]) == "Write: some text and more"


def test_a_state_keeps_its_program_going_without_the_stream(fake: Make) -> None:
    state = writes.stream(runtime=fake(["some text", "more"], delay=0.001, piece=2)).state
    gc.collect()
    assert state["b"] == "more"


# -- the state of a stream ------------------------------------------------------------------


def test_the_state_of_a_stream_waits_for_what_the_program_has_not_come_to(fake: Make) -> None:
    gate = threading.Event()

    @function
    def late(s: State) -> Any:
        gate.wait(20)
        s += "Q: " + gen("x")
        s["noted"] = 7
        group = s.fork(2)
        group += gen("y")
        s.join(group, "y")
        s += gen("parts", regex="(?P<n>[0-9]+)")
        return "returned"

    with late.stream(runtime=fake(["ex", "why", "why", "12"])) as stream:
        state = stream.state
        threading.Timer(0.05, gate.set).start()
        assert state["x"] == "ex"
        assert state["noted"] == 7
        assert list(state["y"]) == ["why", "why"]
        assert state.get("parts", int) == 12
        assert state.result == "returned"
        with pytest.raises(KeyError, match="no variable 'never'"):
            _ = state["never"]


def test_reading_a_streams_state_changes_nothing_of_its_prompt(fake: Make) -> None:
    gate = threading.Event()

    @function
    def turns(s: State) -> None:
        s += user("q")
        with s.assistant():
            gate.wait(20)
            s += "A: "
            s += gen("x")

    with turns.stream(runtime=fake(["yes"])) as stream:
        state = stream.state
        reading = threading.Thread(target=lambda: state.messages())
        reading.start()
        wait_until(lambda: stream._run.readers.are_waiting or not reading.is_alive())
        gate.set()
        assert state["x"] == "yes"
        reading.join(20)
    assert turns(runtime=fake(["yes"])).text() == state.text()
    kinds = [type(node).__name__ for node in stream._run.blocks[0].nodes]
    assert "Dynamic" not in kinds


@pytest.mark.parametrize("has_ended", [False, True])
def test_only_the_program_appends_to_its_state(slow: Any, has_ended: bool) -> None:
    with writes.stream(runtime=slow) as stream:
        state = stream.state
        if has_ended:
            stream.cancel()
            wait_until(lambda: stream._run.finished)
        with pytest.raises(StateClosedError, match="only its own function appends"):
            state += "more"
    wait_until(lambda: stream._run.finished)  # its branches are released then


def test_a_failed_program_fails_those_who_wait_for_its_variables(fake: Make) -> None:
    @function
    def fails(s: State) -> None:
        s += gen("x")
        raise ValueError("no") if s["x"] else KeyError

    state = fails.stream(runtime=fake(["x"])).state
    with pytest.raises(ProgramError, match="ValueError: no"):
        _ = state["y"]


# -- one answer ------------------------------------------------------------------------------


def test_a_stopped_answer_keeps_its_text_and_the_program_goes_on(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "Write: " + gen("a", max_tokens=100_000)
        for _ in s.stream("a"):
            s.stop("a")
        s += " Then: " + gen("b")

    backend = fake([LONG, "the end"], delay=0.01, piece=5)
    state = program(runtime=backend)
    completion = state.completion("a")
    assert completion.finish_reason == "stopped"
    assert re.fullmatch("(word )+", state["a"])
    assert len(state["a"]) < len(LONG)
    assert state.text() == f"Write: {state['a']} Then: the end"
    assert backend.prompts[1].startswith(f"Write: {state['a']} Then: ")


def test_an_answer_is_stopped_by_the_reader_of_a_stream(slow: Any) -> None:
    with writes.stream(runtime=slow) as stream:
        for piece in stream.variable("a"):
            assert piece
            stream.state.stop("a")
        stream.state.stop("b")
        assert stream.state.completion("b").finish_reason == "stopped"


def test_an_answer_that_is_stopped_before_it_begins_is_empty(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "Q" + gen("a") + "," + gen("b")
        s.stop("b")
        s.stop("a")

    state = program(runtime=fake(lambda p, q: LONG, delay=0.01, piece=5))
    assert state["b"] == ""
    assert state.completion("b").finish_reason == "stopped"


def test_stopping_what_has_ended_changes_nothing(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("a") + select("c", ["x", "y"])
        assert s["a"] == "done"
        s.stop("a")
        s.stop("c")
        s["python"] = 1
        with pytest.raises(ParameterError, match="was set by Python"):
            s.stop("python")

    state = program(runtime=fake(["done", "x"]))
    assert state["a"] == "done"
    assert state.completion("a").finish_reason == "eos"


def test_all_samples_and_joined_branches_are_stopped_together(slow: Any) -> None:
    @function
    def program(s: State) -> None:
        s += "Q" + gen("n", n=3, max_tokens=100_000)
        s.stop("n")
        s.choose("n", 0)
        group = s.fork(2)
        group += gen("j", max_tokens=100_000)
        s.join(group, "j")
        s.stop("j")

    state = program(runtime=slow)
    assert len(list(state["j"])) == 2


def test_a_stopped_answer_under_a_constraint_is_incomplete(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("a", regex="[0-9]{400}", max_tokens=100_000)
        for _ in s.stream("a"):
            s.stop("a")

    with pytest.raises(ProgramError) as caught:
        program(runtime=fake(["7" * 400], delay=0.01, piece=5))
    assert isinstance(caught.value.__cause__, IncompleteError)
    assert re.fullmatch("7+", caught.value.__cause__.partial)


def test_answers_are_stopped_in_batches_and_async_programs(fake: Make) -> None:
    @function
    async def program(s: State, q: str) -> None:
        s += user(q) + assistant(gen("a", max_tokens=100_000))
        async for _ in s.astream("a"):
            s.stop("a")
        s["n"] = len(await s.aget("a", str))

    backend = fake(lambda p, q: LONG, delay=0.01, piece=5)
    for result in program.run_batch([{"q": "1"}, {"q": "2"}], runtime=backend):
        assert result.error is None
        assert 0 < result["n"] < len(LONG)
        assert result.state.completion("a").finish_reason == "stopped"


def test_aget_takes_a_type(fake: Make) -> None:
    @function
    async def program(s: State) -> Any:
        s += gen("x")
        return await s.aget("x"), await s.aget("x", int), await s.aget("x", float)

    assert program(runtime=fake(["12"])).result == ("12", 12, 12.0)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Program threads of streams have ended with their runs."""
    yield
    wait_until(lambda: not any(thread.name.startswith("radixlang-stream-")
                               for thread in threading.enumerate()))  # fmt: skip
