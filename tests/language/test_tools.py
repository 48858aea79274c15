"""Tools: how functions and dicts describe a call, and what making it comes to."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from radixlang import Tool, ToolBox, Tools, function, match
from radixlang.constraints.specs import ToolCall
from radixlang.errors import InvalidConstraintError, ParameterError
from radixlang.state.state import State

Make = Callable[..., Any]


def book(day: date, seats: Annotated[int, Field(ge=1, le=4)], price: Decimal = Decimal(0)) -> str:
    """Book seats.

    Says what was booked.
    """
    return f"{type(day).__name__} {day.year}, {seats}, {type(price).__name__}"


async def look_up(city: str) -> str:
    """Look up a city."""
    await asyncio.sleep(0)
    return city.upper()


class Scale:
    """Weigh something."""

    def __call__(self, grams: int) -> int:
        return 2 * grams

    def tare(self, grams: int) -> int:
        """Set to zero."""
        return -grams


class Ticket(BaseModel):
    """A ticket."""

    seat: int


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
          "additionalProperties": False}  # fmt: skip


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "f", "parameters": SCHEMA},
        {"name": "f", "inputSchema": SCHEMA},
        {"name": "f", "input_schema": SCHEMA, "description": None},
        {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
        Tool("f", SCHEMA),  # type: ignore[arg-type]
    ],
    ids=["chat template", "inputSchema", "input_schema", "nested", "Tool"],
)
def test_every_format_of_a_tool_has_its_schema_enforced(tool: Any) -> None:
    tools = Tools((tool,))
    assert match(tools, '{"name": "f", "arguments": {"a": 1}}')
    assert not match(tools, '{"name": "f", "arguments": {"a": "x"}}')
    assert not match(tools, '{"name": "f", "arguments": {}}')


@pytest.mark.parametrize(
    "tool", [{"name": "f", "parameters": None}, {"name": "f"}, {"name": "f", "inputSchema": None}]
)
def test_a_tool_without_a_schema_takes_no_arguments(tool: Any) -> None:
    assert match(Tools((tool,)), '{"name": "f", "arguments": {}}')
    assert not match(Tools((tool,)), '{"name": "f", "arguments": {"a": 1}}')


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ({"name": "f", "args": SCHEMA}, "schema under 'args'; the key is one of parameters"),
        ({"name": "f", "parameters": SCHEMA, "inputSchema": SCHEMA}, "keep one"),
        ({"parameters": SCHEMA}, "needs a name"),
        (lambda a: a, "no name that a model can write"),
        (3, "a function or a dict"),
    ],
    ids=["unknown key", "two schemas", "no name", "lambda", "number"],
)
def test_a_tool_that_cannot_be_read_is_refused_by_name(tool: Any, said: str) -> None:
    with pytest.raises(InvalidConstraintError, match=said):
        Tool.of(tool)


def counting(n: int) -> Iterator[int]:
    yield n


async def counting_later(n: int) -> AsyncIterator[int]:
    yield n


@pytest.mark.parametrize("tool", [counting, counting_later])
def test_a_tool_that_yields_is_refused(tool: Any) -> None:
    with pytest.raises(InvalidConstraintError, match="yields; a tool returns one answer"):
        ToolBox([tool])


def test_arguments_are_typed_by_their_annotations() -> None:
    box = ToolBox([book])
    call = {"name": "book", "arguments": {"day": "2024-02-29", "seats": 2, "price": "1.50"}}
    assert match(box.constraint, json.dumps(call))
    assert box.run(call).text == "date 2024, 2, Decimal"
    call["arguments"]["seats"] = 5  # type: ignore[index]
    assert not match(box.constraint, json.dumps(call))
    assert "error: ArgumentError: seats: " in box.run(call).text


def test_a_description_for_the_prompt_names_formats() -> None:
    told = json.loads(ToolBox([book]).describe())
    assert told["description"] == "Book seats.\n\nSays what was booked."
    assert told["parameters"]["properties"]["day"] == {"type": "string", "format": "date"}
    assert told["parameters"]["properties"]["seats"]["maximum"] == 4
    assert told["parameters"]["required"] == ["day", "seats"]


def test_partials_objects_methods_and_classes_are_tools() -> None:
    scale = Scale()
    half = functools.partial(book, seats=2)
    box = ToolBox([scale, scale.tare, half, Ticket])
    assert box.names == ("Scale", "tare", "book", "Ticket")
    assert box.run({"name": "Scale", "arguments": {"grams": 2}}).value == 4
    assert box.run({"name": "tare", "arguments": {"grams": 2}}).value == -2
    assert box.run({"name": "book", "arguments": {"day": "2024-02-29"}}).error is None
    assert box.run({"name": "Ticket", "arguments": {"seat": 1}}).value == Ticket(seat=1)
    assert box.run({"name": "Ticket", "arguments": {"seat": "x"}}).error is not None


def test_calls_come_as_chat_interfaces_send_them() -> None:
    box = ToolBox([Scale().tare])
    call = {"type": "function", "function": {"name": "tare", "arguments": '{"grams": 3}'}}
    assert box.run(call).value == -3


@pytest.mark.parametrize(
    "call", [None, "tare", {"arguments": {}}, {"name": "tare", "arguments": "{"},
             {"name": "tare", "arguments": "[1]"}]
)  # fmt: skip
def test_what_is_no_call_is_refused(call: Any) -> None:
    with pytest.raises(ParameterError, match="a call"):
        ToolBox([Scale().tare]).run(call)


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        (book, "takes a list"),
        ("book", "takes a list"),
        ([{"name": "f"}], "runs functions"),
        ([book, functools.partial(book, seats=1)], "two tools are called 'book'"),
    ],
    ids=["function", "string", "dict", "same name"],
)
def test_a_box_of_something_else_is_refused(functions: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        ToolBox(functions)


def test_an_async_tool_runs_to_its_end_in_a_plain_program(fake: Make) -> None:
    box = ToolBox([look_up])

    @function
    def program(s: State) -> None:
        s += box.gen("call")
        s += box.run(s["call"]).text

    answer = '{"name": "look_up", "arguments": {"city": "Oslo"}}'
    assert program(runtime=fake([answer])).text() == answer + "OSLO"


def test_tools_in_an_async_program_are_awaited(fake: Make) -> None:
    box = ToolBox([look_up, book])

    @function
    async def program(s: State) -> None:
        s += box.gen("call")
        s += (await box.arun(await s.aget("call"))).text
        s += (await box.arun({"name": "book", "arguments": {}})).text
        s += (await box.arun({"name": "other"})).text

    answer = '{"name": "look_up", "arguments": {"city": "Oslo"}}'
    text = asyncio.run(program.arun(runtime=fake([answer]))).text()
    assert "OSLOerror: ArgumentError: book needs the argument 'day'error: ParameterError" in text


def test_an_async_tool_on_a_running_loop_is_refused_with_the_way_to_call_it() -> None:
    async def main() -> None:
        ToolBox([look_up]).run(ToolCall("look_up", {"city": "Oslo"}))

    with pytest.raises(ParameterError, match=r"await box\.arun\(call\)"):
        asyncio.run(main())


def test_a_result_that_has_no_text_is_an_answer_too() -> None:
    def weigh() -> Any:
        found: list[Any] = []
        found.append(found)
        return found

    assert "error: RecursionError" in ToolBox([weigh]).run({"name": "weigh"}).text
