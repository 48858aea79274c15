"""`on_run`: who is told of a run, when, and that nobody's error is a run's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from radixlang import State, function, gen, on_run
from radixlang.errors import ParameterError, ProgramError, RequestError

Make = Callable[..., Any]


@function
def program(s: State, q: str = "q") -> None:
    s += q + gen("x")


@function
async def waiting(s: State) -> None:
    s += gen("x")
    await s.aget("x")


def fails_on(part: str) -> Callable[[str, Any], Any]:
    return lambda prompt, _: RequestError("no") if part in prompt else "fine"


def test_a_finished_run_is_told_before_run_returns(fake: Make) -> None:
    told: list[Any] = []
    with on_run(lambda s: told.append((s["x"], s.error))):
        program(runtime=fake(["one"]))
    program(runtime=fake(["two"]))  # nobody listens any more
    assert told == [("one", None)]


def test_a_failed_run_is_told_before_run_raises(fake: Make) -> None:
    told: list[Any] = []
    with on_run(told.append), pytest.raises(ProgramError):
        program(runtime=fake([RequestError("no")]))
    (state,) = told
    assert isinstance(state.error.__cause__, RequestError)
    assert state._run().finished


def test_an_error_of_the_program_itself_is_told(fake: Make) -> None:
    @function
    def broken(s: State) -> None:
        s += gen("x")
        raise KeyError("mine")

    told: list[Any] = []
    with on_run(told.append), pytest.raises(KeyError, match="mine"):
        broken(runtime=fake(["fine"]))
    assert "mine" in str(told[0].error)


def test_starts_come_before_ends(fake: Make) -> None:
    order: list[str] = []
    with (
        on_run(lambda s: order.append("start"), when="start"),
        on_run(lambda s: order.append("end")),
    ):
        program(runtime=fake(["one"]))
        asyncio.run(waiting.arun(runtime=fake(["two"])))
        program.compile().run(runtime=fake(["three"]))
        list(program.stream(runtime=fake(["four"])).text())
    assert order[:6] == ["start", "end"] * 3
    assert order[6] == "start"  # a stream's end is told by its own thread


def test_every_row_of_a_batch_is_told_to_its_reader(fake: Make) -> None:
    rows = [{"q": f"row {index}"} for index in range(5)]
    told: list[bool] = []
    with on_run(lambda s: told.append(s.error is None)):
        results = program.run_batch(rows, runtime=fake(fails_on("row 3")))
    assert sorted(told) == [False, True, True, True, True]
    assert [result.error is None for result in results] == [True, True, True, False, True]


def test_a_listener_that_raises_warns_and_fails_no_run(fake: Make) -> None:
    def bad(_: State) -> None:
        raise ValueError("mine")

    with on_run(bad), pytest.warns(RuntimeWarning, match="bad raised ValueError: mine"):
        state = program(runtime=fake(["fine"]))
    assert state["x"] == "fine"


def test_a_listener_is_told_once_and_can_be_stopped_twice(fake: Make) -> None:
    told: list[State] = []
    subscription = on_run(told.append)
    on_run(told.append)
    program(runtime=fake(["one"]))
    subscription.stop()
    subscription.stop()
    program(runtime=fake(["two"]))
    assert len(told) == 1


def test_when_is_start_or_end() -> None:
    with pytest.raises(ParameterError, match='"start" or "end"'):
        on_run(print, when="middle")  # type: ignore[arg-type]
