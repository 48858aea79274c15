"""Every fault reproduced in a neighbour's frontend (field notes), right here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from radixlang import assistant, function, gen, select, user
from radixlang.errors import (
    JoinError,
    ParameterError,
    ProgramError,
    RequestError,
    StateClosedError,
)
from radixlang.execution.threads.timers import deadlines
from radixlang.protocol import Message
from radixlang.state.state import State

Make = Callable[..., Any]
BROKEN = RequestError("the model is on fire")


def fail_on(word: str) -> Callable[[str, Any], Any]:
    return lambda prompt, params: BROKEN if word in prompt else f"ok{len(prompt)}"


def test_append_after_the_run_raises_at_once(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "a" + gen("x")

    state = program(runtime=fake(["1"]))
    with pytest.raises(StateClosedError, match="'program' has finished"):
        state += "b" + gen("y")
    assert state.text() == "a1"


def test_append_after_a_join_raises_at_once(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        group = s.fork(2)
        group += gen("x")
        s.join(group)
        with pytest.raises(StateClosedError, match="has been joined"):
            group += "more"

    assert list(program(runtime=fake(["1", "2"]))["x"]) == ["1", "2"]


def test_every_read_after_a_backend_error_raises_the_first(fake: Make) -> None:
    errors: list[BaseException] = []

    @function
    def program(s: State) -> None:
        s += "Set this " + gen("x")
        for read in (lambda: s["x"], s.text, s.messages, lambda: s["x"], s.values):
            with pytest.raises(ProgramError) as caught:
                read()
            errors.append(caught.value)
        with pytest.raises(StateClosedError) as closed:
            s += "more"
        errors.append(closed.value.__cause__ or closed.value)

    with pytest.raises(ProgramError) as caught:
        program(runtime=fake(fail_on("Set")))
    assert all(error is caught.value for error in errors)
    assert caught.value.__cause__ is BROKEN


def test_an_error_names_line_branch_and_prompt(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "start "
        with s.fork(2) as group:
            group[0] += "fine " + gen("x")
            group[1] += "burn " + gen("x")

    with pytest.raises(ProgramError) as caught:
        program(runtime=fake(fail_on("burn")))
    error = caught.value
    assert error.branch == (1,)
    assert error.prompt_tail == "start burn "
    assert error.location.startswith(__file__)
    assert "test_faults.py:" in str(error)
    assert "on fire" in str(error)


def test_one_rows_exception_stays_in_that_row(fake: Make) -> None:
    @function
    def program(s: State, n: int) -> None:
        s += f"{n} " + gen("x")
        if n == 2:
            raise ZeroDivisionError("row two")

    def answer(prompt: str, params: Any) -> Any:
        return BROKEN if prompt == "3 " else "fine"

    results = program.run_batch([{"n": n} for n in range(5)], runtime=fake(answer))
    assert [result.index for result in results] == [0, 1, 2, 3, 4]
    assert [result.error is None for result in results] == [True, True, False, False, True]
    assert isinstance(results[2].error.__cause__, ZeroDivisionError)
    assert results[3].error.__cause__ is BROKEN
    assert results[4]["x"] == "fine"
    with pytest.raises(ProgramError):
        results[3]["x"]


def test_a_stream_raises_the_error_that_ends_it(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "a" + gen("x") + "b" + gen("y")

    for read in ("text", "events", "variable"):
        stream = program.stream(runtime=fake(["first", BROKEN]))
        reader = {
            "text": stream.text, "events": lambda s=stream: iter(s),
            "variable": lambda s=stream: s.variable("y"),
        }[read]  # fmt: skip
        with pytest.raises(ProgramError, match="on fire"):
            list(reader())


def test_an_exception_in_a_turn_closes_it(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        try:
            with s.user():
                s += "half"
                raise KeyError("oops")
        except KeyError:
            pass
        s += user("whole")

    state = program(runtime=fake())
    assert state.messages() == [Message("user", "half"), Message("user", "whole")]


def test_unnamed_gens_bind_nothing(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen() + gen() + gen(None)

    state = program(runtime=fake(["1", "2", "3"]))
    assert state.names() == []
    assert state.text() == "123"


def test_select_without_options_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one option"):
        select("x", [])
    with pytest.raises(ParameterError, match="not empty"):
        select("x", ["a", ""])
    with pytest.raises(ParameterError, match="listed twice"):
        select("x", ["a", "b", "a"])
    with pytest.raises(ParameterError, match="list of options"):
        select("x", "yes")


def test_second_join_of_a_name_is_the_one_that_is_read(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        for round_index in range(2):
            group = s.fork(2)
            group += lambda i, r=round_index: f"{r}{i} " + gen("x")
            s.join(group, "x")
            s[f"round {round_index}"] = list(s["x"])

    state = program(runtime=fake(lambda prompt, params: prompt[-3:-1]))
    assert state["round 0"] == ["00", "01"]
    assert list(state["x"]) == ["10", "11"]


def test_a_child_without_the_variable_keeps_its_place(fake: Make) -> None:
    @function
    def program(s: State, strict: bool) -> None:
        group = s.fork(3)
        group[0] += gen("x")
        group[2] += gen("x")
        s.join(group, "x", missing="raise" if strict else "none")

    assert list(program(strict=False, runtime=fake(["a", "c"]))["x"]) == ["a", None, "c"]
    with pytest.raises(ParameterError, match="in branch 1"):
        program(strict=True, runtime=fake(["a", "c"]))


def test_a_join_of_a_name_nobody_has_is_refused(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        group = s.fork(2)
        group += gen("answer")
        s.join(group, "anwser")

    with pytest.raises(ParameterError, match="no branch of the fork has bound 'anwser'"):
        program(runtime=fake(["a", "b"]))


def test_children_see_the_parents_values_and_what_is_behind_them(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x", logprobs=True)
        (child,) = s.fork(1)
        assert child["x"] == "first"
        assert child.completion("x").logprobs is not None
        s += gen("x")
        assert s["x"] == "second"
        assert child["x"] == "first"

    program(runtime=fake(["first", "second"]))


def test_batch_leaves_the_callers_rows_alone(fake: Make) -> None:
    @function
    def program(s: State, q: str, options: list[str]) -> None:
        options.append("changed by the program")
        s += q

    rows = [{"q": "a", "options": ["x"]}]
    program.bind(q="bound").run_batch(rows, runtime=fake())
    assert set(rows[0]) == {"q", "options"}
    assert rows[0]["q"] == "a"


def test_an_f_string_of_an_argument_traces() -> None:
    @function
    def program(s: State, name: str, score: float) -> None:
        s += f"Hello {name}, {score:.2f}!" + gen("x")

    graph = program.trace()
    assert graph.arguments() == ("name", "score")
    assert graph.is_static


def test_a_branch_on_a_generated_value_is_a_boundary_never_a_choice() -> None:
    @function
    def program(s: State) -> None:
        s += gen("x")
        if s["x"] == "yes":
            s += "A"
        else:
            s += "B"

    graph = program.trace()
    boundary = graph.first_dynamic()
    assert boundary is not None
    assert "not known yet" in boundary.reason
    assert boundary.location.file == __file__
    assert len(graph.root.nodes) == 2


@pytest.mark.parametrize(
    "look",
    [
        lambda x: bool(x), lambda x: len(x), lambda x: int(x), lambda x: list(x),
        lambda x: x in "text", lambda x: "text" in x, lambda x: x in ["a"], lambda x: x in {"a"},
        lambda x: x == "a", lambda x: x != "a", lambda x: x < "b", lambda x: x.upper(),
        lambda x: str(x), lambda x: "".join([x]), lambda x: x[0], lambda x: {x: 1},
        lambda x: __import__("re").match("a", x), lambda x: "abc".startswith(x), lambda x: x % 3,
        lambda x: print(x),
    ],
)  # fmt: skip
def test_whatever_looks_at_a_value_is_a_boundary(look: Callable[[Any], Any]) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x")
        look(s["x"])
        s += "never reached"

    graph = program.trace()
    assert not graph.is_static
    assert len(graph.root.nodes) == 2


def test_typed_gen_with_a_stop(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("n", int, stop="\n") + gen("text", str)

    state = program(runtime=fake(["42\n", "Punctuation, too!"]))
    assert state["n"] == 42
    assert state["text"] == "Punctuation, too!"


def test_a_type_and_a_schema_together_are_refused() -> None:
    with pytest.raises(ParameterError, match="takes a type or json_schema"):
        gen("x", int, json_schema='{"type": "object"}')
    with pytest.raises(ParameterError, match="together"):
        gen("x", regex="a", choices=["a"])


def test_int_pattern_allows_no_blanks() -> None:
    import re

    from radixlang.constraints.typed_values import INT_PATTERN

    assert re.fullmatch(INT_PATTERN, "-120")
    assert not re.fullmatch(INT_PATTERN, "1 ")
    assert not re.fullmatch(INT_PATTERN, "1\n")


def test_live_forks_hold_no_threads(fake: Make) -> None:
    before = threading.active_count()
    counts: list[int] = []

    @function
    def program(s: State) -> None:
        s += "root"
        group = s.fork(160)
        group += lambda i: f"{i}" + gen("x")
        group[159]["x"]
        counts.append(threading.active_count())

    program(runtime=fake())
    assert counts[0] <= before + 2  # the fake's worker, and perhaps one more


def test_collected_errors_stay_in_their_branch(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        with s.fork(3, on_error="collect") as group:
            group += lambda i: ("burn" if i == 1 else f"{i}") + gen("x") + gen("y")
        assert list(group.errors) == [1]
        assert group.errors[1].branch == (1,)
        s.join(group, "x")
        s += "goes on"

    state = program(runtime=fake(fail_on("burn")))
    assert list(state["x"]) == ["ok1", None, "ok1"]
    assert state.text() == "goes on"


def test_strict_join_raises_the_branches_errors(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        group = s.fork(3, on_error="collect")
        group += lambda i: ("burn" if i else "fine") + gen("x")
        s.join(group, "x", missing="raise")
        s["x"][0]

    with pytest.raises(JoinError) as caught:
        program(runtime=fake(fail_on("burn")))
    assert sorted(caught.value.errors) == [1, 2]


def test_failure_cancels_the_siblings(fake: Make) -> None:
    backend = fake(lambda prompt, params: BROKEN if "burn" in prompt else "x" * 5000, delay=0.01)

    @function
    def program(s: State) -> None:
        with s.fork(2) as group:
            group[0] += "long" + gen("x", max_tokens=5000)
            group[1] += "burn" + gen("x")

    with pytest.raises(ProgramError, match="on fire"):
        program(runtime=backend)
    backend.drain()
    assert backend.num_live_branches == 0


def test_a_program_that_raises_frees_everything(fake: Make) -> None:
    backend = fake(["x" * 5000], delay=0.01)

    @function
    def program(s: State) -> None:
        s += "a" + assistant(gen("x", max_tokens=5000))
        next(s.stream("x"))
        raise OSError("mine")

    with pytest.raises(OSError, match="mine"):
        program(runtime=backend)
    backend.drain()
    assert backend.num_live_branches == 0


# -- what is no Exception -------------------------------------------------------------------


class Exits:
    """A value whose formatting ends the program."""

    def __format__(self, spec: str) -> str:
        raise SystemExit(3)


def exits(*_: Any) -> Any:
    raise SystemExit(3)


@function
def exits_in_its_function(s: State, q: str) -> None:
    s += q + gen("x")
    if s["x"] == "1":
        raise SystemExit(3)


@function
def exits_in_its_scorer(s: State, q: str) -> None:
    s += q + select("x", ["a", "b"], scorer=exits if q == "1" else "likelihood")


@function
def exits_in_its_reducer(s: State, q: str) -> None:
    group = s.fork(2)
    group += gen("y")
    s["x"] = list(s.join(group, "y", reduce=exits if q == "1" else sorted))


@function
def exits_in_its_formatting(s: State, q: str) -> None:
    s += q
    s += f"{Exits()}" if q == "1" else "fine"


@pytest.mark.parametrize(
    "program",
    [exits_in_its_function, exits_in_its_scorer, exits_in_its_reducer, exits_in_its_formatting],
)
def test_a_row_that_exits_ends_alone(fake: Make, program: Any) -> None:
    rows = [{"q": str(index)} for index in range(4)]
    results = program.run_batch(rows, runtime=fake(lambda p, q: p))
    assert [result.error is not None for result in results] == [False, True, False, False]
    assert "SystemExit: 3" in str(results[1].error)


def test_a_script_that_exits_fails_its_generation_and_the_fake_goes_on(fake: Make) -> None:
    backend = fake(lambda prompt, params: exits() if prompt == "1" else "fine")
    results = exits_in_its_function.run_batch([{"q": "0"}, {"q": "1"}], runtime=backend)
    assert results[0].error is None
    error = results[1].error
    assert error is not None
    assert isinstance(error.__cause__, SystemExit)
    assert exits_in_its_function(q="2", runtime=backend)["x"] == "fine"


def test_a_timed_call_that_fails_keeps_no_other_from_being_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called = threading.Event()
    deadlines.after(0.0, exits)
    deadlines.after(0.01, called.set)
    assert called.wait(20)
    assert "a timed call failed" in caplog.text
