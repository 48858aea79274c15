"""The spine: programs, variables, texts, turns, and how they are called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import radixlang
from radixlang import assistant, function, gen, select, system, user
from radixlang.errors import ParameterError, StateClosedError
from radixlang.protocol import Message
from radixlang.state.state import State

Make = Callable[..., Any]


@function
def question(s: State, country: str, style: str = "short") -> str:
    """Ask for a capital."""
    s += f"The capital of {country} ({style}) is "
    s += gen("capital", max_tokens=16, stop=".")
    s += "!"
    return s["capital"]


def test_runs_and_returns_its_finished_state(fake: Make) -> None:
    state = question(country="France", runtime=fake(["Paris. Yes"]))
    assert state["capital"] == "Paris"
    assert state.result == "Paris"
    assert state.text() == "The capital of France (short) is Paris!"
    assert state.error is None


def test_positional_arguments_and_defaults(fake: Make) -> None:
    state = question.run("Spain", "long", runtime=fake(["Madrid"]))
    assert state.text() == "The capital of Spain (long) is Madrid!"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "needs the argument 'country'"),
        ({"country": "x", "cuntry": "y"}, "did you mean 'country'"),
        ({"country": "x", "temprature": 1}, "did you mean 'temperature'"),
        ({"country": "x", "temperature": -1}, "temperature must be"),
    ],
)
def test_wrong_arguments_are_named(fake: Make, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        question.run(runtime=fake(["x"]), **kwargs)


def test_options_of_a_program_hold_until_a_call_says_otherwise(fake: Make) -> None:
    careful = question.with_options(runtime=fake(["Paris"] * 3), seed=7, max_tokens=2)
    assert careful("France").seed == 7
    assert careful("France", seed=8).seed == 8
    assert careful.bind(country="France").run_batch([{}])[0]["capital"] == "Paris"

    @function
    def still(s: State, country: str) -> None:
        s += f"{country}: " + gen("capital")

    assert still.with_options(seed=9).compile()(country="x", runtime=fake(["y"])).seed == 9
    with pytest.raises(ParameterError, match="did you mean 'temperature'"):
        question.with_options(temprature=0)  # type: ignore[call-arg]


def test_a_group_takes_a_value_that_is_not_known_yet(fake: Make) -> None:
    @function
    def twice(s: State) -> None:
        s += gen("word")
        with s.fork(2) as group:
            group += s.ref("word")
            group += gen("next")

    assert twice.run(runtime=fake({"": "one", "one": "two"}))
    assert twice.trace().is_static


def test_too_many_positional_arguments(fake: Make) -> None:
    with pytest.raises(ParameterError, match="takes 2 arguments"):
        question.run("a", "b", "c", runtime=fake())
    with pytest.raises(ParameterError, match="twice"):
        question.run("a", country="b", runtime=fake())


def test_definitions_that_cannot_work_are_refused() -> None:
    with pytest.raises(ParameterError, match="first parameter"):
        function(lambda: None)
    with pytest.raises(ParameterError, match="every argument"):
        function(lambda s, *rest: None)
    with pytest.raises(ParameterError, match="rename the parameter"):
        function(lambda s, timeout: None)


def test_a_run_default_yields_to_the_node(fake: Make) -> None:
    seen: list[tuple[float, int]] = []

    def answer(prompt: str, params: Any) -> str:
        seen.append((params.temperature, params.max_tokens))
        return "ok"

    @function
    def program(s: State) -> None:
        s += "a" + gen("x", temperature=0.5) + "b" + gen("y")

    program.run(runtime=fake(answer), temperature=0.0, max_tokens=3)
    assert seen == [(0.5, 3), (0.0, 3)]


def test_turns_follow_the_template_and_messages_keep_every_byte(fake: Make) -> None:
    odd = "  two blanks\n\n<|im_end|> \ttail "

    @function
    def chat(s: State) -> None:
        s += system("Be brief.") + user(odd)
        s += assistant("Answer: " + gen("answer"))

    state = chat(runtime=fake(["yes"]))
    assert state.messages() == [
        Message("system", "Be brief."),
        Message("user", odd),
        Message("assistant", "Answer: yes"),
    ]
    assert state.text() == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        f"<|im_start|>user\n{odd}<|im_end|>\n"
        "<|im_start|>assistant\nAnswer: yes<|im_end|>\n"
    )


def test_content_never_becomes_a_special_token(fake: Make) -> None:
    backend = fake()

    @function
    def chat(s: State) -> None:
        s += user("<|im_end|>")
        s["ids"] = s.tokens()

    state = chat(runtime=backend)
    special = [token for token in state["ids"] if token >= 0x110000]
    assert len(special) == 2  # the turn's own opening and closing


def test_role_contexts_and_begin_end(fake: Make) -> None:
    @function
    def chat(s: State) -> None:
        with s.user():
            s += "hi"
        s += radixlang.assistant_begin() + gen("a") + radixlang.assistant_end()

    state = chat(runtime=fake(["hello"]))
    assert [message.content for message in state.messages()] == ["hi", "hello"]


def test_open_turn_refuses_another(fake: Make) -> None:
    @function
    def chat(s: State) -> None:
        with s.user():
            s += system("no")

    with pytest.raises(ParameterError, match="inside the open turn 'user'"):
        chat(runtime=fake())


def test_unknown_role_is_a_clear_error(fake: Make) -> None:
    @function
    def chat(s: State) -> None:
        s += radixlang.role("narrator", "once") + gen("x")

    with pytest.raises(radixlang.ProgramError, match="narrator"):
        chat(runtime=fake(["x"]))


def test_raw_text_needs_no_template(fake: Make) -> None:
    @function
    def raw(s: State) -> None:
        s += "plain " + gen("x")

    assert raw(runtime=fake(["text"])).text() == "plain text"


def test_select_follows_the_script(fake: Make) -> None:
    @function
    def choose(s: State) -> None:
        s += "yes or no? " + select("answer", ["yes", "no"])

    state = choose(runtime=fake(["no"]))
    assert state["answer"] == "no"
    assert state.text().endswith("? no")


def test_variables_of_python(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s["n"] = 3
        s += "x" * s["n"]

    state = program(runtime=fake())
    assert state["n"] == 3
    assert "n" in state
    assert "m" not in state


def test_unknown_variable_lists_the_known_ones(fake: Make) -> None:
    state = question(country="x", runtime=fake(["y"]))
    with pytest.raises(KeyError, match=r"no variable 'capitol'.*'capital'"):
        state["capitol"]


def test_finished_state_refuses_more(fake: Make) -> None:
    state = question(country="x", runtime=fake(["y"]))
    with pytest.raises(StateClosedError, match="has finished"):
        state += "more"


def test_bind_yields_to_explicit_keywords(fake: Make) -> None:
    bound = question.bind(style="bound", country="Italy")
    assert "bound" in bound(runtime=fake(["r"])).text()
    assert "mine" in bound(style="mine", runtime=fake(["r"])).text()
    with pytest.raises(ParameterError, match="no argument"):
        question.bind(nothing=1)


def test_async_program(fake: Make) -> None:
    @function
    async def program(s: State, q: str) -> str:
        s += q + gen("a")
        first = await s.aget("a")
        s += " then " + gen("b")
        return f"{first}|{await s.aget('b')}|{await s.atext()}"

    async def main() -> list[State]:
        backend = fake(lambda prompt, params: f"<{len(prompt)}>", delay=0.001)
        return await asyncio.gather(*(program.arun(q=f"q{i}", runtime=backend) for i in range(5)))

    for index, state in enumerate(asyncio.run(main())):
        assert state.result == f"<2>|<11>|q{index}<2> then <11>"


def test_async_program_runs_from_plain_code(fake: Make) -> None:
    @function
    async def program(s: State) -> None:
        s += "a" + gen("x")

    assert program(runtime=fake(["b"]))["x"] == "b"


def test_plain_program_awaits_without_blocking_the_loop(fake: Make) -> None:
    async def main() -> int:
        ticks = 0
        task = asyncio.ensure_future(
            question.arun(country="x", runtime=fake(["slow answer"], delay=0.05))
        )
        while not task.done():
            ticks += 1
            await asyncio.sleep(0.005)
        assert (await task)["capital"] == "slow answer"
        return ticks

    assert asyncio.run(main()) > 1


def test_cancelled_task_cancels_the_program(fake: Make) -> None:
    backend = fake(["x" * 4000], delay=0.01)

    @function
    def long(s: State) -> None:
        s += gen("x", max_tokens=4000)

    async def main() -> None:
        task = asyncio.ensure_future(long.arun(runtime=backend))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    backend.drain()
    assert backend.num_live_branches == 0


def test_default_runtime(fake: Make) -> None:
    radixlang.set_default_runtime(fake(["by default"]))
    try:
        assert question(country="x")["capital"] == "by default"
    finally:
        radixlang.set_default_runtime(None)


def test_typed_get(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("n")

    state = program(runtime=fake([" 42 "]))
    assert state.get("n", int) == 42
    assert state.get("n") == " 42 "
    with pytest.raises(radixlang.ValueParseError) as caught:
        state.get("n", bool)
    assert caught.value.partial == " 42 "


def test_completion_and_usage(fake: Make) -> None:
    state = question(country="x", runtime=fake(["abc"]), logprobs=True)
    completion = state.completion("capital")
    assert completion.text == "abc"
    assert completion.logprobs is not None
    assert state.usage("capital").num_generated_tokens == 3
    assert state.usage().num_prompt_tokens == len("The capital of x (short) is ")
