"""Specifications: hashable by content, one of them a generation, wrong ones refused by name."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest

from radixlang.constraints.specs import (
    Capture,
    Choices,
    Grammar,
    JsonSchema,
    Regex,
    Sequence,
    Tool,
    Tools,
    as_constraint,
    from_kwargs,
    match,
)
from radixlang.errors import InvalidConstraintError, ParameterError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Person:
    name: str
    age: int


class Place(TypedDict):
    city: str


@dataclass
class Broken:
    size: complex


@dataclass
class Unknown:
    size: Nobody  # type: ignore[name-defined]  # noqa: F821


def paint(colour: complex) -> None: ...


def weather(city: str, days: int = 1) -> str:
    """The weather."""
    return city * days


@pytest.mark.parametrize(
    "make",
    [
        lambda: Regex("a+"),
        lambda: JsonSchema.of({"type": "object", "properties": {"b": {}, "a": {}}}),
        lambda: Grammar('start: "a"'),
        lambda: Choices(["a", "b"]),
        lambda: Tools((weather,)),
        lambda: Sequence(("a", Capture("x", Regex("b")))),
    ],
)
def test_equal_content_is_one_key(make: Any) -> None:
    assert make() == make()
    assert len({make(), make()}) == 1


def test_the_order_of_properties_is_kept() -> None:
    assert JsonSchema.of({"b": 1, "a": 2}).schema == '{"b":1,"a":2}'


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, None),
        ({"regex": "a"}, Regex("a")),
        ({"regex": re.compile("a", re.IGNORECASE)}, Regex("(?i)a")),
        ({"choices": Colour}, Choices(("red", "blue"))),
        ({"choices": Literal["x", "y"]}, Choices(("x", "y"))),
        ({"grammar": 'start: "a"', "finish": "close"}, Grammar('start: "a"', finish="close")),
        ({"json_schema": '{"type":"null"}', "strict": False, "whitespace": 0},
         JsonSchema('{"type":"null"}', strict=False, whitespace=0)),
        ({"constraint": Regex("a")}, Regex("a")),
    ],
)  # fmt: skip
def test_keyword_arguments_make_one_constraint(kwargs: Any, expected: Any) -> None:
    assert from_kwargs(**kwargs) == expected


def test_two_constraints_raise_and_name_both() -> None:
    with pytest.raises(ParameterError, match="regex and choices"):
        from_kwargs(regex="a", choices=["a"])


@pytest.mark.parametrize(
    ("kwargs", "error", "what"),
    [
        ({"strict": False}, ParameterError, "strict needs a constraint"),
        ({"regex": "a", "strict": False}, ParameterError, "Regex"),
        ({"regex": "a", "finish": "maybe"}, ParameterError, "maybe"),
        ({"choices": "abc"}, InvalidConstraintError, "'abc'"),
        ({"choices": []}, InvalidConstraintError, "empty"),
        ({"choices": [1]}, InvalidConstraintError, "1"),
        ({"choices": 3}, InvalidConstraintError, "got 3"),
        ({"json_schema": [{}]}, InvalidConstraintError, "object or a boolean, got [{}]"),
        ({"json_schema": "a.json"}, InvalidConstraintError, "in 'a.json'; a file is given by"),
        ({"json_schema": {}, "whitespace": -1}, InvalidConstraintError, "0 or more, got -1"),
        ({"grammar": "", "whitespace": "2"}, InvalidConstraintError, "0 or more, got '2'"),
        ({"tools": weather}, InvalidConstraintError, "tools is a list of functions"),
        ({"tools": "weather"}, InvalidConstraintError, "got 'weather'"),
        ({"tools": [paint]}, InvalidConstraintError, "paint.colour: <class 'complex'>"),
        ({"json_schema": Broken}, InvalidConstraintError, "Broken.size: <class 'complex'>"),
        ({"json_schema": Unknown}, InvalidConstraintError, "Unknown: name 'Nobody' is not defined"),
        ({"regex": 3}, InvalidConstraintError, "3"),
        ({"json_schema": "{"}, InvalidConstraintError, "JSON text"),
        ({"json_schema": "[1]"}, InvalidConstraintError, "object or a boolean"),
        ({"json_schema": '{"maxLength": NaN}'}, InvalidConstraintError, "not JSON"),
        ({"json_schema": "[" * 100_000}, InvalidConstraintError, "nested"),
        ({"json_schema": {"const": float("nan")}}, InvalidConstraintError, "not JSON"),
        ({"json_schema": {"const": object()}}, InvalidConstraintError, "not JSON"),
        ({"tools": []}, InvalidConstraintError, "empty"),
        ({"tools": [weather, weather]}, InvalidConstraintError, "weather"),
        ({"tools": [{"description": "x"}]}, InvalidConstraintError, "name"),
    ],
)
def test_wrong_arguments_are_refused(kwargs: Any, error: type, what: str) -> None:
    with pytest.raises(error, match=re.escape(what)):
        from_kwargs(**kwargs)


def test_wrong_parts_are_refused() -> None:
    with pytest.raises(InvalidConstraintError, match="got the string 'abc'"):
        Sequence("abc")  # type: ignore[arg-type]
    with pytest.raises(InvalidConstraintError, match="got 3"):
        Sequence(("a", Capture("x", 3)))  # type: ignore[arg-type]
    with pytest.raises(InvalidConstraintError, match="'larl'"):
        Grammar('start: "a"', parser="larl")  # type: ignore[arg-type]
    with pytest.raises(InvalidConstraintError, match="a string, got 3"):
        match("a", 3)  # type: ignore[arg-type]


def test_a_pydantic_model_without_a_schema_is_named() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Thing", run=(Callable[[int], int], ...))
    with pytest.raises(InvalidConstraintError, match=r"Thing has no JSON schema: .*Callable"):
        as_constraint(model)


@pytest.mark.parametrize("kind", [Person, Place, list[int], dict[str, float]])
def test_types_are_schemas(kind: Any) -> None:
    samples = {
        Person: '{"name": "Ada", "age": 36}', Place: '{"city": "Rome"}',
        list[int]: "[1, 2]", dict[str, float]: '{"a": 1.5}',
    }  # fmt: skip
    key = next(k for k in samples if k == kind)
    assert match(kind, samples[key])
    assert not match(kind, '{"x": null}')


def test_pydantic_models_are_schemas() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Thing", size=(int, ...), tag=(Literal["a", "b"], "a"))
    assert match(model, '{"size": 3, "tag": "b"}')
    assert not match(model, '{"size": "3"}')


def test_strings_are_regexes_and_dicts_are_schemas() -> None:
    assert as_constraint("a") == Regex("a")
    assert as_constraint({"type": "null"}) == JsonSchema('{"type":"null"}')


def test_tools_come_from_functions_and_chat_templates() -> None:
    tool = Tool.of(weather)
    assert (tool.name, tool.description) == ("weather", "The weather.")
    described = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert Tool.of(described) == Tool("f", '{"type":"object"}')
    call = Tools((weather,), begin="<call>", end="</call>")
    text = '<call>{"name": "weather", "arguments": {"city": "Rome", "days": 2}}</call>'
    assert match(call, text)
    assert call.parse(text).arguments == {"city": "Rome", "days": 2}
    assert not match(call, text.replace('Rome"', 'Rome", "x": 1'))
    assert not match(call, text.replace("2", '"2"'))
    assert not match(call, text.replace("weather", "climate"))
