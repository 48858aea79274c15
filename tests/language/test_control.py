"""Control: forks, samples, nesting, cancellation, budgets, retries, strategies, tools."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from radixlang import assistant, function, gen, select, user
from radixlang.errors import (
    BudgetError,
    CancelledError,
    DeadlineError,
    ParameterError,
    ProgramError,
    RequestError,
    StateClosedError,
)
from radixlang.execution.handlers.option_scorers import SCORERS
from radixlang.program.strategies import beam, best_of, majority, mean_logprob, retry
from radixlang.program.tools import ToolBox
from radixlang.state.state import State

Make = Callable[..., Any]


# -- forks and joins ----------------------------------------------------------------------


@pytest.mark.parametrize("before", ["", None])
def test_fork_of_an_empty_state(fake: Make, before: str | None) -> None:
    @function
    def program(s: State) -> None:
        if before is not None:
            s += before
        group = s.fork(3)
        group += lambda i: f"{i}" + gen("x")
        s.join(group, "x")

    assert list(program(runtime=fake(lambda p, q: p))["x"]) == ["0", "1", "2"]


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "3"])
def test_fork_needs_a_number(fake: Make, n: Any) -> None:
    @function
    def program(s: State) -> None:
        s.fork(n)

    with pytest.raises(ParameterError, match="number of branches"):
        program(runtime=fake())


def test_group_appends_expression_list_and_function(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        with s.fork(2) as group:
            group += "a"
            group += ["b", "c"]
            group += lambda i: str(i)
            assert [branch.text() for branch in group] == ["ab0", "ac1"]
            with pytest.raises(ParameterError, match="3 items were given to 2"):
                group += ["1", "2", "3"]
            with pytest.raises(ParameterError, match="cannot be replaced"):
                group[0] = s

    program(runtime=fake())


def test_join_by_text_and_by_reducer(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        first = s.fork(3)
        first += lambda i: f"{i}:" + gen("x", int)
        s.join(first, "x", reduce=sum)
        second = s.fork(2)
        second += lambda i: f"<{i}>"
        s.join(second, text=True, separator="|")
        s["total"] = s["x"]

    state = program(runtime=fake(lambda p, q: "1" + p[0]))
    assert state["x"] == 10 + 11 + 12
    assert state.text() == "<0>|<1>"


def test_a_reducer_that_raises_fails_the_program(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        group = s.fork(2)
        group += gen("x")
        s.join(group, "x", reduce=lambda values: values[5])

    with pytest.raises(ProgramError, match="IndexError"):
        program(runtime=fake())


def test_join_wants_its_own_group(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        (child,) = s.fork(1)
        group = child.fork(2)
        with pytest.raises(ParameterError, match="forked from this state"):
            s.join(group)

    program(runtime=fake())


def test_nested_forks_and_paths(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        outer = s.fork(2)
        for branch in outer:
            inner = branch.fork(2)
            inner += gen("x")
            branch.join(inner, "x")
        s.join(outer, "x")

    state = program(runtime=fake(lambda p, q: "v"))
    assert [list(values) for values in state["x"]] == [["v", "v"], ["v", "v"]]
    assert {block.path for block in state.graph.blocks} == {
        (), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1),
    }  # fmt: skip


def test_fork_inside_an_open_turn(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        with s.user():
            s += "Question: "
            group = s.fork(2)
            for index, branch in enumerate(group):
                branch += f"part {index}"
                branch.role_end("user")
                branch += assistant(gen("x"))
            assert [m.content for m in group[1].messages()] == ["Question: part 1", "ok"]
            s += "whole"

    state = program(runtime=fake(["ok", "ok"]))
    assert [m.content for m in state.messages()] == ["Question: whole"]


# -- n > 1 --------------------------------------------------------------------------------


def test_samples_are_an_explicit_group(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += user("Q") + assistant("A: " + gen("x", n=3, temperature=1.0))
        assert len(s.samples("x")) == 3
        with pytest.raises(ParameterError, match=r"s\.choose\('x', index\)"):
            s += "more"
        s.choose("x", lambda values: values.index(max(values)))
        s += user("next")

    state = program(runtime=fake(["b", "c", "a"]))
    assert state["x"] == "c"
    assert [m.content for m in state.messages()] == ["Q", "A: c", "next"]


def test_samples_without_a_choice_are_a_list(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "A: " + gen("x", n=4)

    state = program(runtime=fake(), temperature=1.0)
    assert len(set(state["x"])) == 4  # each sample has a seed of its own
    assert state.text() == "A: "


def test_n_must_be_a_number() -> None:
    with pytest.raises(ParameterError, match="n must be"):
        gen("x", n=0)


# -- nested programs ----------------------------------------------------------------------


@function
def inner(s: State, q: str) -> str:
    s += f"[{q}:" + gen("x") + "]"
    return s["x"] + "!"


@pytest.mark.parametrize(
    ("scope", "text", "prompt"),
    [("inline", "a[q:v]b", "a[q:"), ("vanish", "ab", "a[q:"), ("isolate", "ab", "[q:")],
)
def test_scope_of_a_nested_program(fake: Make, scope: Any, text: str, prompt: str) -> None:
    @function
    def outer(s: State) -> str:
        s += "a"
        child = s.call(inner, q="q", scope=scope)
        s += "b"
        assert "x" not in s
        assert child["x"] == "v"
        with pytest.raises(StateClosedError, match="has returned"):
            child.append("late")
        return child.result

    backend = fake(["v"])
    state = outer(runtime=backend)
    assert state.text() == text
    assert state.result == "v!"
    assert backend.prompts == [prompt]


def test_calling_a_program_with_a_state_is_inline(fake: Make) -> None:
    @function
    def outer(s: State) -> None:
        s += "a"
        inner(s, "one")
        inner(s, q="two")

    state = outer(runtime=fake(["1", "2"]))
    assert state.text() == "a[one:1][two:2]"


def test_an_inline_call_traces_and_compiles(fake: Make) -> None:
    @function
    def part(s: State, q: str) -> None:
        s += q + gen("x") + "."

    @function
    def outer(s: State, q: str) -> None:
        s += "a"
        part(s, q)
        s += "b"

    assert outer.trace().is_static
    assert outer.compile()(q="?", runtime=fake(["v"])).text() == "a?v.b"


def test_wrong_scope(fake: Make) -> None:
    @function
    def outer(s: State) -> None:
        s.call(inner, "q", scope="nowhere")  # type: ignore[arg-type]

    with pytest.raises(ParameterError, match="inline, vanish, isolate"):
        outer(runtime=fake())


# -- cancel, timeout, budgets, retries ----------------------------------------------------


@function
def endless(s: State) -> None:
    s += gen("x", max_tokens=100_000)


def test_timeout_ends_the_program_and_frees_it(fake: Make) -> None:
    backend = fake(["x" * 100_000], delay=0.005)
    with pytest.raises(ProgramError, match=r"timeout of 0\.05 s") as caught:
        endless(runtime=backend, timeout=0.05)
    assert isinstance(caught.value.__cause__, DeadlineError)
    backend.drain()
    assert backend.num_live_branches == 0


def test_cancel_from_another_thread(fake: Make) -> None:
    backend = fake(["x" * 100_000], delay=0.005)
    stream = endless.stream(runtime=backend)
    pieces = stream.text()
    next(pieces)
    stream.cancel()
    with pytest.raises(ProgramError) as caught:
        list(pieces)
    assert isinstance(caught.value.__cause__, CancelledError)
    backend.drain()
    assert backend.num_live_branches == 0


def test_cancel_of_one_branch_leaves_the_others(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        group = s.fork(2)
        group += lambda i: f"{i}" + gen("x", max_tokens=100_000)
        next(group[0].stream("x"))
        group[0].cancel()
        assert group[1]["x"] == "short"
        with pytest.raises(ProgramError, match="cancelled"):
            group[0]["x"]
        s.join(group, "x")

    backend = fake(lambda p, q: "short" if p[0] == "1" else "x" * 100_000, delay=0.002)
    assert list(program(runtime=backend)["x"]) == [None, "short"]


def test_budget_over_all_branches(fake: Make) -> None:
    @function
    def program(s: State, n: int) -> None:
        group = s.fork(n)
        group += gen("x", max_tokens=10)
        s.join(group, "x")

    assert len(program(n=3, runtime=fake(lambda p, q: "12345"), max_total_tokens=15)["x"]) == 3
    backend = fake(lambda p, q: "12345")
    with pytest.raises(ProgramError) as caught:
        program(n=4, runtime=backend, max_total_tokens=15)
    assert isinstance(caught.value.__cause__, BudgetError)
    assert backend.stats().num_generated_tokens <= 15


def test_a_generation_cut_by_the_budget_is_an_error(fake: Make) -> None:
    with pytest.raises(ProgramError, match="cut to the 7 tokens"):
        endless(runtime=fake(["x" * 50]), max_total_tokens=7)


def test_retry_shares_the_prefix(fake: Make) -> None:
    backend = fake([RequestError("hiccup"), "no", "yes"])

    @function
    def program(s: State) -> None:
        s += "A long prefix. "
        retry(s, gen("x"), until=lambda branch: branch["x"] == "yes")
        s += " done"

    state = program(runtime=backend)
    assert state["x"] == "yes"
    assert state.text() == "A long prefix. yes done"
    assert backend.stats().num_computed_tokens <= len("A long prefix. ")


def test_retry_gives_up_with_the_last_error(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        retry(s, gen("x"), times=2)

    with pytest.raises(ProgramError, match=r"no attempt of 2 succeeded.*hiccup"):
        program(runtime=fake([RequestError("hiccup"), RequestError("hiccup")]))


# -- strategies ---------------------------------------------------------------------------


def test_best_of(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "go "
        best_of(s, 3, gen("x", logprobs=True), mean_logprob("x"))
        s += "."
        best_of(s, 3, gen("y"), lambda branch: len(branch["y"]))

    state = program(runtime=fake(["a", "bb", "c", "1", "333", "22"]))
    assert state["y"] == "333"
    assert state.text() == f"go {state['x']}.333"


def test_majority(fake: Make) -> None:
    @function
    def program(s: State) -> Any:
        return majority(s, 5, "= " + gen("x", int), "x")

    state = program(runtime=fake(["4", "5", "4", "6", "4"]))
    assert state.result == 4
    assert state["x"] == 4
    assert state.text() == "= 4"


def test_beam_keeps_the_best_path(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += ">"
        beam(s, gen("x"), lambda b: int(b.text()[1:]), width=2, branching=2, depth=3)
        s += "<"

    counter = iter(range(1, 100))
    state = program(runtime=fake(lambda p, q: str(next(counter) % 10)))
    digits = state.text()[1:-1]
    assert len(digits) == 3
    assert digits.isdigit()
    assert digits[0] == "2"  # the better of the first two


def test_beam_checks_its_numbers(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        beam(s, gen("x"), lambda b: 0.0, width=0, branching=1, depth=1)

    with pytest.raises(ParameterError, match="at least 1"):
        program(runtime=fake())


# -- tools --------------------------------------------------------------------------------


def divide(a: int, b: int) -> float:
    """Divide a by b."""
    return a / b


def test_tool_errors_go_back_to_the_model(fake: Make) -> None:
    box = ToolBox([divide])

    @function
    def program(s: State) -> None:
        s += user(box.describe())
        for turn in range(3):
            s += assistant(box.gen(f"call {turn}", max_tokens=80))
            s += user(box.run(s[f"call {turn}"]).text)

    calls = [
        '{"name": "divide", "arguments": {"a": 1, "b": 0}}',
        '{"name": "divide", "arguments": {"a": 1, "b": "x"}}',
        '{"name": "divide", "arguments": {"a": 1, "b": 4}}',
    ]
    contents = [m.content for m in program(runtime=fake(calls)).messages()]
    assert '"Divide a by b."' in contents[0]
    assert contents[2].startswith("error: ZeroDivisionError")
    assert contents[4].startswith("error: ArgumentError")
    assert contents[6] == "0.25"


def test_an_unknown_tool_is_an_answer_too() -> None:
    result = ToolBox([divide]).run({"name": "multiply", "arguments": {}})
    assert "no tool 'multiply'; there are: divide" in result.text
    assert result.error is not None


@pytest.mark.parametrize(("answers", "chosen"), [(["", "hm", ""], "hm"), (["", ""], "")])
def test_an_empty_sample_loses_to_any_other(fake: Make, answers: list[str], chosen: str) -> None:
    @function
    def program(s: State) -> None:
        best_of(s, len(answers), gen("x", logprobs=True), mean_logprob("x"))

    state = program(runtime=fake(answers))
    assert state["x"] == chosen
    assert (mean_logprob("x")(state) == float("-inf")) == (chosen == "")


# -- select -------------------------------------------------------------------------------


def test_length_bias_and_the_scorers(fake: Make) -> None:
    options = ["Paris", "Antidisestablishmentarianism"]
    scores = {"Paris": -0.5, "Antidisestablishmentarianism": -0.1}

    def run(scorer: Any) -> State:
        @function
        def program(s: State) -> None:
            s += "The capital of France is " + select("x", options, scorer=scorer)

        return program(runtime=fake(scores=scores))

    assert run("token_length_normalized")["x"] == options[1]
    assert run("greedy_token")["x"] == options[1]
    assert run("likelihood")["x"] == "Paris"
    assert run(lambda details: [option.total for option in details])["x"] == "Paris"


def test_select_chooses_the_likeliest_option_by_default(fake: Make) -> None:
    options = ["certainly", "never", "absolutely not under any circumstances"]
    scores = {"certainly": -0.2, "never": -0.4, options[2]: -0.1}

    @function
    def program(s: State) -> None:
        s += "Is it so? " + select("x", options)

    choice = program(runtime=fake(scores=scores)).choice("x")
    totals = [option.total for option in choice.details]
    assert choice.text == "certainly" == options[totals.index(max(totals))]
    assert list(choice.scores) == totals
    assert choice.probabilities[0] == pytest.approx(
        math.exp(totals[0]) / sum(math.exp(total) for total in totals)
    )


def test_the_chosen_option_has_the_highest_probability_whatever_the_scorer(fake: Make) -> None:
    options = ["Paris", "Antidisestablishmentarianism", "Rome"]
    scores = {"Paris": -0.5, "Antidisestablishmentarianism": -0.1, "Rome": -2.0}
    never = float("-inf")
    scorers: list[Any] = [*SCORERS, lambda found: [-1.0, 3.0, never], lambda found: [never] * 3]
    for scorer in scorers:

        @function
        def program(s: State, scorer: Any) -> None:
            s += "The capital of France is " + select("x", options, scorer=scorer)

        choice = program(scorer, runtime=fake(scores=scores)).choice("x")
        assert choice.probabilities[choice.index] == max(choice.probabilities)
        assert sum(choice.probabilities) == pytest.approx(1)


def test_unconditional_likelihood_takes_away_what_is_likely_anyway(fake: Make) -> None:
    def score(prompt: str, option: str) -> float:
        if prompt == "\n":
            return {"the": -0.1, "quark": -9.0}[option]
        return {"the": -1.0, "quark": -2.0}[option]

    @function
    def program(s: State) -> None:
        s += "Physics: " + select("x", ["the", "quark"],
                                  scorer="unconditional_likelihood_normalized")  # fmt: skip

    assert program(runtime=fake(scores=score))["x"] == "quark"


def test_ties_are_visible(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += select("x", ["b", "a", "c"])

    choice = program(runtime=fake(scores={"a": -1, "b": -1, "c": -2})).choice("x")
    assert choice.is_tie
    assert choice.ties == (0, 1)
    assert choice.text == "b"


@pytest.mark.parametrize("count", [1, 10_000])
def test_one_to_ten_thousand_options(fake: Make, count: int) -> None:
    options = [f"option {index:05}" for index in range(count)]

    @function
    def program(s: State) -> None:
        s += select("x", options)

    assert program(runtime=fake([options[-1]]))["x"] == options[-1]


def test_a_scorer_that_is_wrong_says_so(fake: Make) -> None:
    with pytest.raises(ParameterError, match="did you mean 'greedy_token'"):
        select("x", ["a"], scorer="greedy_tokens")

    @function
    def program(s: State) -> None:
        s += select("x", ["a", "b"], scorer=lambda details: [1.0])

    with pytest.raises(ProgramError, match="must give 2 numbers"):
        program(runtime=fake(["a"]))
