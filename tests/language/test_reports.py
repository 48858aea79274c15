"""Reports of the neighbours' users, each as a test here (field notes give the issue)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from radixlang import assistant, function, gen, select, user
from radixlang.errors import InvalidConstraintError, ParameterError, ProgramError
from radixlang.state.state import State

Make = Callable[..., Any]


def test_fork_right_after_a_slow_gen_keeps_pending_text(fake: Make) -> None:
    """sglang#410"""

    @function
    def program(s: State) -> None:
        s += "start " + gen("slow", max_tokens=500) + " pending"
        group = s.fork(2)
        group += lambda i: f" child {i}"
        for index, branch in enumerate(group):
            assert branch.text() == f"start {'x' * 200} pending child {index}"

    program(runtime=fake(["x" * 200], delay=0.001))


def test_first_option_token_with_and_without_a_leading_space(fake: Make) -> None:
    """sglang#608, guidance#53, guidance#79"""

    @function
    def program(s: State, blank: str) -> None:
        s += "Answer:" + select("x", [blank + "yes", blank + "no"])

    for blank in ("", " "):
        state = program(blank=blank, runtime=fake([blank + "no"]))
        assert state["x"] == blank + "no"
        assert state.text() == f"Answer:{blank}no"


def test_option_scores_are_of_the_option_alone_also_side_by_side(fake: Make) -> None:
    """sglang#1257, sglang#2873"""

    @function
    def program(s: State, prompt: str) -> None:
        s += prompt + select("x", ["ab", "cb"])

    backend = fake(lambda p, q: "ab" if len(p) % 2 else "cb")
    rows = [{"prompt": "p" * n} for n in range(1, 40)]
    for row, result in zip(rows, program.run_batch(rows, runtime=backend), strict=True):
        details = result.state.choice("x").details
        assert [len(option.logprobs) for option in details] == [2, 2]
        assert result["x"] == ("ab" if len(row["prompt"]) % 2 else "cb")


def test_an_integer_gen_leaves_later_gens_alone(fake: Make) -> None:
    """sglang#1575"""
    seen: list[Any] = []

    def answer(prompt: str, params: Any) -> str:
        seen.append(params.stop)
        return "1"

    @function
    def program(s: State) -> None:
        s += gen("n", int, stop="\n") + gen("text")

    program(runtime=fake(answer))
    assert seen == [("\n",), ()]


def test_begin_of_sequence_is_the_tokenizers_business_once(fake: Make) -> None:
    """sglang PR 888, #3417: nothing here writes a second one, also with assistant prefill"""

    @function
    def program(s: State) -> None:
        s += user("hi") + assistant("prefill " + gen("x"))

    assert program(runtime=fake(["y"])).text().count("<|im_start|>user") == 1


def test_an_invalid_schema_fails_one_program_only(fake: Make) -> None:
    """sglang#4574"""

    @function
    def program(s: State, schema: str) -> None:
        s += gen("x", json_schema=schema)

    bad, good = program.run_batch(
        [{"schema": "{not json"}, {"schema": '{"type": "object"}'}], runtime=fake(["{}"])
    )
    assert isinstance(bad.error.__cause__, InvalidConstraintError)
    assert good["x"] == "{}"


def test_a_variable_is_there_however_large_max_tokens(fake: Make) -> None:
    """guidance#481"""

    @function
    def program(s: State) -> None:
        s += gen("x", max_tokens=100_000)

    assert program(runtime=fake(["small"]))["x"] == "small"


def test_many_async_programs_overlap(fake: Make) -> None:
    """guidance#361"""

    @function
    async def program(s: State) -> None:
        s += gen("x")
        await s.aget("x")

    async def main(backend: Any) -> None:
        await asyncio.gather(*(program.arun(runtime=backend) for _ in range(20)))

    side_by_side: list[int] = []

    def answer(prompt: str, params: Any) -> str:
        side_by_side.append(backend.num_live_branches)
        return "x" * 64

    backend = fake(answer, delay=0.02)
    asyncio.run(main(backend))
    assert max(side_by_side) > 1


def test_a_second_query_in_the_same_loop(fake: Make) -> None:
    """lmql#36, lmql#6"""

    @function
    async def program(s: State) -> None:
        s += gen("x")
        await s.aget("x")

    async def main() -> list[str]:
        backend = fake(lambda p, q: "v")
        first = await program.arun(runtime=backend)
        second = await program.arun(runtime=backend)
        return [first["x"], second["x"]]

    assert asyncio.run(main()) == ["v", "v"]


def test_a_scoring_only_program(fake: Make) -> None:
    """lmql#247"""

    @function
    def program(s: State) -> None:
        s += select("x", ["a", "b"])

    assert program(runtime=fake(["b"]))["x"] == "b"


def test_a_choice_can_be_used_again(fake: Make) -> None:
    """outlines#1109"""
    choice = select("x", ["a", "b"])
    typed = gen("n", int)

    @function
    def program(s: State) -> None:
        s += choice + typed
        s["first"] = (s["x"], s["n"])
        s += choice + typed

    state = program(runtime=fake(["a", "1", "b", "2"]))
    assert (state["first"], state["x"], state["n"]) == (("a", 1), "b", 2)


def test_not_seeded_by_default(fake: Make) -> None:
    """outlines#221"""

    @function
    def program(s: State) -> None:
        s += gen("x", temperature=1.0)

    backend = fake()
    assert len({program(runtime=backend)["x"] for _ in range(5)}) > 1


def test_expressions_are_values(fake: Make) -> None:
    base = "a" + gen("x")
    longer = base + "b"
    assert len(base.items) == 2
    assert len(longer.items) == 3
    with pytest.raises(ParameterError, match="f-string"):
        f"{base}"
    with pytest.raises(ParameterError, match="str"):
        base + 3  # type: ignore[operator]


def test_option_names_are_checked_where_they_are_written() -> None:
    with pytest.raises(ParameterError, match="did you mean 'max_tokens'"):
        gen("x", max_token=3)
    with pytest.raises(ParameterError, match="max_tokens must be"):
        gen("x", max_tokens=0)
    with pytest.raises(ParameterError, match="max_tokens must be"):
        gen("x", max_tokens=True)
    with pytest.raises(ParameterError, match="name must be a string"):
        gen("")


def test_a_run_on_a_closed_backend_ends_with_an_error(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x")

    backend = fake()
    backend.close()
    with pytest.raises(ProgramError, match="closed"):
        program(runtime=backend)
