"""Typed generation: the constraint of a type, and the value that a text means."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Optional, TypedDict, Union

import jsonschema
import pydantic
import pytest

from radixlang import function, gen
from radixlang.constraints.specs import Choices, JsonSchema, Regex
from radixlang.constraints.typed_values import from_json, output_for, to_json
from radixlang.errors import InvalidConstraintError, ParameterError, ProgramError, ValueParseError
from radixlang.state.state import State

Make = Callable[..., Any]


class Color(enum.Enum):
    RED = "red"
    TWO = 2


@dataclass
class Point:
    x: int
    y: float = 0.5
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    value: int
    children: list[Tree]


class Movie(TypedDict, total=False):
    title: str
    year: int


class Pair(NamedTuple):
    left: str
    right: int


class Model(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)


def lookup(city: str, days: int = 3) -> str:
    return f"{city}{days}"


CASES = [
    (int, "-42", -42),
    (float, "1.5e3", 1500.0),
    (float, "-7", -7.0),
    (bool, "true", True),
    (str, " any, text! ", " any, text! "),
    (Literal["a", "b"], "b", "b"),
    (Literal[1, True], "1", 1),
    (Color, "red", Color.RED),
    (Color, "2", Color.TWO),
    (Optional[int], "null", None),  # noqa: UP045
    (int | None, "3", 3),
    (Union[int, str], '"three"', "three"),  # noqa: UP007
    (list[int], "[1, 2]", [1, 2]),
    (list, '[1, "a"]', [1, "a"]),
    (tuple[int, str], '[1, "a"]', (1, "a")),
    (tuple[int, ...], "[1, 2, 3]", (1, 2, 3)),
    (dict[str, list[float]], '{"a": [1, 2.5]}', {"a": [1.0, 2.5]}),
    (dict[int, str], '{"1": "a"}', {1: "a"}),
    (set[str], '["a"]', {"a"}),
    (Point, '{"x": 1, "tags": ["t"]}', Point(1, 0.5, ["t"])),
    (Tree, '{"value": 1, "children": [{"value": 2, "children": []}]}', Tree(1, [Tree(2, [])])),
    (Movie, '{"title": "M"}', {"title": "M"}),
    (Pair, '{"left": "a", "right": 1}', Pair("a", 1)),
    (Model, '{"name": "n", "age": 3}', Model(name="n", age=3)),
    (list[Model], '[{"name": "n", "age": 3}]', [Model(name="n", age=3)]),
    (lookup, '{"city": "Rome"}', {"city": "Rome"}),
]


@pytest.mark.parametrize(("kind", "text", "value"), CASES, ids=lambda v: str(v)[:24])
def test_a_typed_gen_has_that_type(fake: Make, kind: Any, text: str, value: Any) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x", kind)

    state = program(runtime=fake([text]))
    assert state["x"] == value
    assert type(state["x"]) is type(value)
    assert state.text() == text


@pytest.mark.parametrize(("kind", "text", "value"), CASES, ids=lambda v: str(v)[:24])
def test_the_constraint_allows_the_text(kind: Any, text: str, value: Any) -> None:
    import re

    match output_for(kind).constraint:
        case Regex(pattern):
            assert re.fullmatch(pattern, text)
        case Choices(options):
            assert text in options
        case JsonSchema(schema):
            jsonschema.validate(json.loads(text), json.loads(schema))
        case None:
            assert kind is str


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "4.5"), (int, "07"), (int, "1_000"), (int, ""), (float, "nan"), (float, "1e999"),
        (bool, "yes"), (Literal["a"], "b"), (Color, "blue"), (list[int], "[1, "),
        (list[int], '["a"]'), (list[int], "{}"), (tuple[int, int], "[1]"), (Point, '{"y": 1}'),
        (Point, '{"x": 1, "z": 2}'), (Model, '{"name": "n", "age": -1}'), (int | None, '"a"'),
        (dict[str, int], "[1]"), (Pair, '{"left": 1}'), (bool | int, "1.5"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_value_raises_with_the_text(kind: Any, text: str) -> None:
    with pytest.raises(ValueParseError) as caught:
        output_for(kind).parse(text)
    assert caught.value.partial == text
    assert repr(text)[1:-1] in str(caught.value)


def test_a_bad_value_fails_the_program_with_its_place(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "age: " + gen("age", Model)

    with pytest.raises(ProgramError) as caught:
        program(runtime=fake(['{"name": "n", "age": -1}']))
    assert isinstance(caught.value.__cause__, ValueParseError)
    assert "test_types.py:" in str(caught.value)


@pytest.mark.parametrize("kind", [object, complex, 3, pytest])
def test_what_cannot_be_generated_is_refused(kind: Any) -> None:
    with pytest.raises(ParameterError, match="cannot generate"):
        gen("x", kind)


@pytest.mark.parametrize("kind", [print, list[complex]])
def test_what_json_cannot_hold_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidConstraintError):
        gen("x", kind)


def test_a_type_given_first_is_the_type() -> None:
    assert gen(int).items[0].output == output_for(int)
    with pytest.raises(ParameterError, match="name must be a string"):
        gen(int, int)


def test_to_json_and_back() -> None:
    values = {"p": Point(1), "c": Color.RED, "m": Model(name="n", age=1), "t": (1, {2})}
    data = to_json(values)
    assert json.loads(json.dumps(data)) == data
    assert from_json(Point, data["p"]) == Point(1)
    assert output_for(Point).convert({"x": 3}) == Point(3)


def test_constraints_by_keyword(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("a", regex="[0-9]{3}") + gen("b", choices=["x", "y"])
        s += gen("c", json_schema={"type": "object"})

    state = program(runtime=fake(["123", "y", "{}"]))
    assert state.values() == {"a": "123", "b": "y", "c": "{}"}


def test_a_truncated_value_raises_with_the_partial_text(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x", list[int], max_tokens=4)

    with pytest.raises(ProgramError) as caught:
        program(runtime=fake(["[1, 2, 3]"]))
    assert caught.value.__cause__.partial == "[1, "


def test_an_invalid_constraint_fails_its_program_before_any_token(fake: Make) -> None:
    backend = fake(["never", "fine"])

    @function
    def program(s: State, pattern: str) -> None:
        s += gen("first") + gen("x", regex=pattern)

    with pytest.raises(ProgramError, match="not valid"):
        program(pattern="(", runtime=backend)
    assert backend.stats().num_generated_tokens == 0
    assert backend.prompts == []
