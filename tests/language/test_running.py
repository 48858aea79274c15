"""Running: batches, streams, seeds, replays, checkpoints."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixlang import assistant, function, gen, select, system, user
from radixlang.errors import ParameterError, ProgramError
from radixlang.execution.handlers.node_context import node_seed
from radixlang.records.checkpoint import resume, take_checkpoint
from radixlang.records.replay import save_replay, verify_replay
from radixlang.state.state import State

Make = Callable[..., Any]


@function
def echo(s: State, q: str) -> None:
    s += f"{q}=" + gen("a")


@function
def stepwise(s: State, q: str) -> None:
    s += q + gen("a")
    s += "," + gen("b") if s["a"] else "none"


# -- batches ------------------------------------------------------------------------------


def test_rows_keep_their_order(fake: Make) -> None:
    rows = [{"q": str(index)} for index in range(100)]
    results = echo.run_batch(rows, runtime=fake(lambda p, q: p[::-1]))
    assert [result["a"] for result in results] == [f"{i}="[::-1] for i in range(100)]
    assert [result.index for result in results] == list(range(100))
    assert results[3].text == "3==3"


def test_stepwise_rows_run_side_by_side(fake: Make) -> None:
    backend = fake(lambda p, q: f"v{len(p)}", delay=0.01)
    results = stepwise.run_batch([{"q": "x"} for _ in range(20)], runtime=backend, max_workers=20)
    assert all(result["b"] for result in results)


def test_more_rows_than_workers_and_room(fake: Make) -> None:
    rows = [{"q": str(index)} for index in range(50)]
    results = stepwise.run_batch(rows, runtime=fake(), max_workers=2, max_in_flight=3)
    assert len(results) == 50
    assert all(result.error is None for result in results)


def test_as_completed_has_indices(fake: Make) -> None:
    seen = sorted(
        result.index for result in echo.as_completed([{"q": "a"}, {"q": "b"}], runtime=fake())
    )
    assert seen == [0, 1]


def test_leaving_early_cancels_the_rest(fake: Make) -> None:
    backend = fake(lambda p, q: "x" * 3000, delay=0.005)
    rows = [{"q": str(index)} for index in range(10)]
    for _ in echo.as_completed(rows, runtime=backend, max_tokens=8):
        break
    backend.drain()
    assert backend.num_live_branches == 0


def test_progress_bar_where_it_is_asked_for(fake: Make, capsys: pytest.CaptureFixture[str]) -> None:
    echo.run_batch([{"q": "a"}] * 3, runtime=fake())
    assert capsys.readouterr().err == ""
    echo.run_batch([{"q": "a"}] * 3, runtime=fake(), progress=True)
    assert "3/3" in capsys.readouterr().err


def test_progress_bar_on_a_terminal(
    fake: Make, shown_on_terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixlang.progress.DELAY_S", 0)

    def run(**options: Any) -> Callable[[], Any]:
        return lambda: echo.run_batch([{"q": "a"}] * 3, runtime=fake(), **options)

    assert "/3" in shown_on_terminal(run())
    assert shown_on_terminal(run(progress=False)) == ""


def test_wrong_options_and_rows(fake: Make) -> None:
    with pytest.raises(ParameterError, match="did you mean 'temperature'"):
        echo.run_batch([{"q": "a"}], runtime=fake(), temprature=1)
    (bad, good) = echo.run_batch([{"Q": "a"}, {"q": "b"}], runtime=fake())
    assert isinstance(bad.error.__cause__, ParameterError)
    assert good.error is None
    assert echo.run_batch([], runtime=fake()) == []


def test_results_are_saved_and_resumed(fake: Make, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    rows = [{"q": str(index)} for index in range(6)]

    def flaky(prompt: str, params: Any) -> Any:
        return RuntimeError("down") if prompt in ("2=", "4=") else f"<{prompt}>"

    first = echo.run_batch(rows, runtime=fake(flaky), save_to=file)
    assert [result.error is not None for result in first] == [i in (2, 4) for i in range(6)]
    with file.open("a", encoding="utf-8") as handle:
        handle.write('{"index": 5, "torn')  # what a crash leaves
    backend = fake(lambda p, q: "second")
    again = echo.run_batch(rows, runtime=backend, save_to=file)
    assert sorted(backend.prompts) == ["2=", "4="]
    assert [result["a"] for result in again] == ["<0=>", "<1=>", "second", "<3=>", "second",
                                                 "<5=>"]  # fmt: skip
    assert len(echo.run_batch(rows, runtime=fake([]), save_to=file)) == 6
    with pytest.raises(ParameterError, match="other rows"):
        echo.run_batch([{"q": "different"}], runtime=fake(), save_to=file)
    assert all(json.loads(line) for line in file.read_text().splitlines() if "torn" not in line)


@pytest.mark.parametrize("name", ["max_workers", "max_in_flight"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_batch_without_room_is_refused(fake: Make, name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"{name} must be an integer of at least 1"):
        echo.run_batch([{"q": "x"}], runtime=fake(), **{name: value})


def test_async_rows(fake: Make) -> None:
    @function
    async def program(s: State, q: str) -> None:
        s += q + gen("a")
        s["b"] = await s.aget("a")

    results = program.run_batch([{"q": "x"}, {"q": "y"}], runtime=fake(lambda p, q: p))
    assert [result["b"] for result in results] == ["x", "y"]


# -- streams ------------------------------------------------------------------------------


def test_stream_of_text_is_the_text(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += system("sys") + user("hi") + assistant("A " + gen("x") + " B " + gen("y"))
        s += select("z", ["yes", "no"]) + "!"

    backend = fake(["long answer one", "short", "no"], delay=0.001, piece=2)
    stream = program.stream(runtime=backend)
    pieces = list(stream.text())
    assert "".join(pieces) == stream.state.text()
    assert len(pieces) > 10


def test_stream_of_variables(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x") + gen()
        with s.fork(2) as group:
            group += gen("tip")
        s += select("z", ["yes", "no"])

    def texts() -> Any:
        return fake(["first", "unnamed", "tip", "tip", "no"], piece=3)

    assert "".join(program.stream(runtime=texts()).variable("x")) == "first"
    assert "".join(program.stream(runtime=texts()).variable("z")) == "no"
    assert list(program.stream(runtime=texts()).variable("never bound")) == []
    events = list(program.stream(runtime=texts()))
    assert {event.branch for event in events if event.name == "tip"} == {(0,), (1,)}
    assert "".join(event.text for event in events if event.name == "x") == "first"


def test_stream_of_a_branch_not_taken(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x")
        if s["x"] == "yes":
            s += select("y", ["a", "b"])

    assert list(program.stream(runtime=fake(["no"])).variable("y")) == []
    assert list(program.stream(runtime=fake(["yes", "b"])).variable("y")) == ["b"]


def test_stream_inside_a_program(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x")
        s["pieces"] = list(s.stream("x"))
        s["again"] = "".join(s.stream("x"))

    state = program(runtime=fake(["abcdefgh"], piece=3))
    assert state["pieces"] == ["abc", "def", "gh"]
    assert state["again"] == "abcdefgh"


def test_async_iteration(fake: Make) -> None:
    async def main() -> list[str]:
        stream = echo.stream(q="x", runtime=fake(["streamed"], delay=0.001, piece=2))
        texts = [piece async for piece in stream.atext()]
        events = [event.text async for event in stream]
        variable = [piece async for piece in stream.avariable("a")]
        assert "".join(events) == "".join(variable) == "streamed"
        return texts

    assert "".join(asyncio.run(main())) == "x=streamed"


# -- seeds --------------------------------------------------------------------------------


def test_seeds_are_of_the_place_not_of_the_company(fake: Make) -> None:
    @function
    def program(s: State, noise: int) -> None:
        group = s.fork(3)
        group += gen("x", temperature=1.0)
        extra = s.fork(noise)
        extra += "noise" + gen("y", temperature=1.0)
        s.join(group, "x")

    alone = program(noise=1, seed=11, runtime=fake())
    crowded = program(noise=7, seed=11, runtime=fake(delay=0.001))
    assert list(alone["x"]) == list(crowded["x"])
    assert len(set(alone["x"])) == 3
    assert list(program(noise=1, seed=12, runtime=fake())["x"]) != list(alone["x"])


def test_a_drawn_seed_is_recorded(fake: Make) -> None:
    first = echo(q="a", runtime=fake(), temperature=1.0)
    second = echo(q="a", runtime=fake(), temperature=1.0)
    assert first.seed != second.seed
    assert echo(q="a", runtime=fake(), temperature=1.0, seed=first.seed)["a"] == first["a"]


def test_a_gens_own_seed_still_tells_branches_apart(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        group = s.fork(2)
        group += gen("x", seed=5)
        s.join(group, "x")

    first, second = program(runtime=fake())["x"]
    assert first != second
    assert list(program(runtime=fake())["x"]) == [first, second]


def test_seed_of_a_node_is_fixed_for_ever() -> None:
    assert node_seed(1, "f0.2", 3) == 572578637334414466
    assert (
        len({node_seed(1, path, slot) for path in ("", "f0.0", "f0.1") for slot in range(9)}) == 27
    )


def test_batch_rows_have_their_own_seeds(fake: Make) -> None:
    rows = [{"q": "same"}] * 4
    results = echo.run_batch(rows, runtime=fake(), seed=1, temperature=1.0)
    assert len({result["a"] for result in results}) == 4
    again = echo.run_batch(rows, runtime=fake(), seed=1, temperature=1.0)
    assert [result["a"] for result in again] == [result["a"] for result in results]


# -- replay and checkpoint ----------------------------------------------------------------


def test_replay_verifies_or_names_the_first_difference(fake: Make, tmp_path: Path) -> None:
    file = tmp_path / "run.json"

    @function
    def program(s: State, q: str) -> None:
        s += q + gen("x")
        group = s.fork(2)
        group += lambda i: f"{i}" + gen("y")
        s.join(group, "y")

    def script(third: str) -> Any:
        return lambda p, q: third if p.endswith("1") else "v"

    save_replay(program(q="hi", runtime=fake(script("w"))), file)
    assert verify_replay(program, file, runtime=fake(script("w"))).difference is None
    found = verify_replay(program, file, runtime=fake(script("other"))).difference
    assert found is not None
    assert found.node == "f0.1#0"
    assert found.what == "outcome"
    assert "test_running.py:" in str(found)
    with pytest.raises(ParameterError, match="not of 'echo'"):
        verify_replay(echo, file, runtime=fake())
    file.write_text("{}")
    with pytest.raises(ParameterError, match="not a radixlang replay"):
        verify_replay(program, file, runtime=fake())


def test_checkpoint_goes_on_where_it_was(fake: Make) -> None:
    saved: list[Any] = []

    @function
    def program(s: State) -> None:
        s += system("sys") + user("one") + assistant(gen("a"))
        saved.append(json.loads(json.dumps(take_checkpoint(s))))
        s += user("two") + assistant(gen("b"))

    whole = program(runtime=fake(["first", "second"]))
    backend = fake(["second"])
    with resume(saved[0], runtime=backend) as s:
        assert s["a"] == "first"
        s += user("two") + assistant(gen("b"))
    assert s.text() == whole.text()
    assert s.messages() == whole.messages()
    assert s.seed == whole.seed
    with pytest.raises(ProgramError), resume(saved[0], runtime=fake([])) as s:
        s += gen("c")
    with pytest.raises(ParameterError, match="not a radixlang checkpoint"):
        resume({}, runtime=backend)


def test_checkpoint_inside_an_open_turn(fake: Make) -> None:
    saved: list[Any] = []

    @function
    def program(s: State) -> None:
        s += user("q")
        with s.assistant():
            s += "begin "
            saved.append(take_checkpoint(s))

    program(runtime=fake())
    with resume(saved[0], runtime=fake(["end"])) as s:
        s += gen("x")
        s.role_end("assistant")
    assert [message.content for message in s.messages()] == ["q", "begin end"]


def test_programs_from_many_threads(fake: Make) -> None:
    backend = fake(lambda p, q: p[::-1])
    texts: dict[int, str] = {}

    def work(index: int) -> None:
        texts[index] = echo(q=f"thread {index}", runtime=backend)["a"]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert texts == {index: f"thread {index}="[::-1] for index in range(16)}
