"""Parts of a constrained generation bound to variables of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from radixlang import function, gen
from radixlang.constraints.specs import Capture, Choices, Regex, Sequence
from radixlang.errors import ParameterError
from radixlang.state.state import State

Make = Callable[..., Any]
DATE = Sequence((Capture("year", Regex("[0-9]{4}")), "-", Capture("month", Choices(("01", "02")))))


@function
def date(s: State) -> None:
    s += "on " + gen("date", constraint=DATE)


def test_captures_are_variables(fake: Make) -> None:
    state = date(runtime=fake(["1999-02"]))
    assert state["date"] == "1999-02"
    assert (state["year"], state["month"]) == ("1999", "02")
    assert state.names() == ["date", "year", "month"]


def test_captures_in_async_programs_and_traces(fake: Make) -> None:
    @function
    async def program(s: State) -> str:
        s += gen("date", constraint=DATE)
        return str(await s.aget("year"))

    assert asyncio.run(program.arun(runtime=fake(["1999-02"]))).result == "1999"

    @function
    def looks(s: State) -> None:
        s += gen("date", constraint=DATE)
        s += f"in {s['year']}"

    assert not looks.trace().is_static


def test_captures_do_not_join_silently(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        group = s.fork(2)
        group += gen("date", constraint=DATE)
        s["years"] = group["year"]
        s.join(group, "year")

    with pytest.raises(ParameterError, match="cannot be joined"):
        program(runtime=fake(["1999-02", "2000-01"]))
