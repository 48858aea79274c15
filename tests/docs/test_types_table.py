"""The tables of types in the page on constraints: each row is served, or refused, as it says."""

from __future__ import annotations

import dataclasses
import enum
import re
from pathlib import Path
from typing import Any, Generic, NamedTuple, NewType, TypeVar

import pydantic
import pytest
from typing_extensions import NotRequired, TypedDict

from radixlang import match
from radixlang.constraints.typed_values import output_for
from radixlang.errors import InvalidConstraintError, ParameterError

PAGE = Path(__file__).parents[2] / "docs" / "constraints.md"
T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


class Pair(NamedTuple):
    left: str
    right: int


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class User(pydantic.BaseModel):
    name: str


def look_up(city: str, days: int = 3) -> str:
    return city * days


def _names() -> dict[str, Any]:
    """What the expressions of the page may use: its classes, and those of the library."""
    found: dict[str, Any] = {}
    exec(
        "import typing, collections.abc, collections, datetime, decimal, ipaddress, pathlib, uuid\n"
        "import pydantic\n"
        "from collections.abc import *\nfrom collections import *\nfrom typing import *\n"
        "from datetime import *\nfrom decimal import Decimal\nfrom ipaddress import *\n"
        "from pathlib import Path\nfrom uuid import UUID\nfrom pydantic import *\n",
        found,
    )
    return found | {"UserId": NewType("UserId", int)} | {
        kind.__name__: kind for kind in (Colour, Point, Box, Pair, Movie, User, look_up)
    }  # fmt: skip


def _rows(header: str) -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").split(header)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


SERVED = _rows("| type | a text of it | its value |")
REFUSED = [
    kind for row in _rows("| type | instead |") for kind in re.findall("`([^`]+)`", row[0])
]  # fmt: skip


def _code(cell: str) -> str:
    return re.findall("`([^`]+)`", cell)[0]


def test_the_tables_are_there() -> None:
    assert len(SERVED) > 30
    assert len(REFUSED) > 10


@pytest.mark.parametrize("row", SERVED, ids=lambda row: _code(row[0]))
def test_a_type_of_the_table_has_the_value_that_it_says(row: list[str]) -> None:
    kind, text, value = (_code(cell) for cell in row)
    names = _names()
    output, expected = output_for(eval(kind, names)), eval(value, names)
    assert output.constraint is None or match(output.constraint, text)
    found = output.parse(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_type_of_the_second_table_is_refused(kind: str) -> None:
    with pytest.raises((InvalidConstraintError, ParameterError)):
        output_for(eval(kind, _names()))
