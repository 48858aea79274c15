"""Types as constraints: bounds, closed classes, keys, calendars, and what is refused by name."""

from __future__ import annotations

import dataclasses
import enum
import json
import subprocess
import sys
from datetime import date, time
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar

import pydantic
import pytest
from pydantic import BaseModel, Field
from typing_extensions import NotRequired, Required, TypeAliasType

from radixlang import JsonSchema, Tool, gen, match
from radixlang.constraints.typed_values import output_for, to_json
from radixlang.constraints.types.rust_patterns import ecma_pattern
from radixlang.constraints.types.standard_types import readable_schema
from radixlang.constraints.types.type_schemas import schema_of
from radixlang.errors import InvalidConstraintError, ParameterError

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Loose(TypedDict, total=False):
    title: Required[str]
    year: int


class Film(Loose):
    rating: NotRequired[Annotated[int, Field(ge=1, le=5)]]
    seen: bool


class User(BaseModel):
    name: str = Field(alias="userName", max_length=5)


class Open(BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int


@dataclasses.dataclass
class Rated:
    stars: Annotated[int, Field(ge=1, le=5)]
    note: Annotated[str, "a remark bounds nothing"] = ""
    level: int = Field(default=1, le=3)


@dataclasses.dataclass
class Box(Generic[T]):
    content: T
    more: list[T] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class LabelledBox(Box[date], Generic[T]):
    label: T | None = None


def rate(stars: Annotated[int, Field(ge=1, le=5)]) -> int:
    return stars


Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | int")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "accepted", "rejected"),
    [
        (Annotated[int, Field(ge=1, le=5)], ["1", "5"], ["0", "6", "1.5"]),
        (list[Annotated[str, Field(max_length=2)]], ['["ab"]'], ['["abc"]']),
        (Rated, ['{"stars": 5}', '{"stars": 1, "level": 3}'],
         ['{"stars": 6}', "{}", '{"stars": 1, "level": 4}', '{"stars": 1, "x": 1}']),
        (rate, ['{"stars": 1}'], ['{"stars": 0}', "{}"]),
        (dict[int, str], ['{"1": "x", "-20": "y"}', "{}"], ['{"zzz": "x"}', '{"01": "x"}']),
        (dict[bool, int], ['{"true": 1}'], ['{"True": 1}', '{"1": 1}']),
        (dict[Color, int], ['{"blue": 1, "red": 2}'], ['{"green": 1}']),
        (dict[Literal["a", 1], int], ['{"1": 1}'], ['{"b": 1}']),
        (dict[date, int], ['{"2024-02-29": 1}'], ['{"2023-02-29": 1}', '{"today": 1}']),
        (list[date], ['["2024-02-29", "2000-02-29"]'],
         ['["2023-02-29"]', '["1900-02-29"]', '["2024-04-31"]', '["0000-01-01"]']),
        (list[time], ['["23:59:59.5Z"]'], ['["10:00:60"]', '["24:00"]', '["10:61"]']),
        (Film, ['{"title": "M", "seen": true}', '{"title": "M", "rating": 5, "seen": true}'],
         ['{"seen": true}', '{"title": "M"}', '{"title": "M", "rating": 6, "seen": true}']),
        (User, ['{"userName": "Ada"}'],
         ['{"name": "Ada"}', '{"userName": "Ada", "more": 1}', '{"userName": "Adalovelace"}']),
        (Open, ['{"a": 1, "b": 2}'], ['{"b": 2}']),
        (list[User], ['[{"userName": "Ada"}]'], ['[{"userName": "Ada", "x": 1}]']),
        (list[pydantic.FiniteFloat], ["[1.5, -3]"], ["[1e999]", f"[1{'0' * 400}]"]),
        (list[Annotated[Decimal, Field(le=5)]], ["[1.5, -3]"],
         ["[5.1]", "[-1e999]", f"[-1{'0' * 400}]"]),
        (Box[int], ['{"content": 1, "more": [2]}'], ['{"content": "a"}']),
        (LabelledBox[int], ['{"content": "2024-02-29", "label": 1}'],
         ['{"content": 1}', '{"content": "2024-02-29", "label": "x"}']),
        (Json, ['{"a": [1, {"b": []}]}'], ['"a"', '{"a": null}']),
        (tuple[()], ["[]"], ["[1]"]),
        (Literal["1", 1, None], ['"1"', "1", "null"], ["2", '"null"']),
        (set[int], ["[1, 1]"], ["[null]"]),
        (set, ['[1, "a"]'], ["[[]]", "[{}]"]),
    ],
    ids=lambda value: str(getattr(value, "__name__", value))[:32],
)  # fmt: skip
def test_a_type_accepts_its_values_alone(
    kind: Any, accepted: list[str], rejected: list[str]
) -> None:
    schema = JsonSchema.of(kind)
    for text in accepted:
        assert match(schema, text), text
        output_for(kind).parse(text)
    for text in rejected:
        assert not match(schema, text), text


class Ticket(BaseModel):
    place: Annotated[str, pydantic.PlainSerializer(str.upper)] = "a"
    paid: pydantic.PastDate


class Nested(BaseModel):
    first: int = Field(validation_alias=pydantic.AliasPath("all", 0))


def _tag(value: Any) -> str:
    return "user"


@dataclasses.dataclass
class Vanishing:
    seed: dataclasses.InitVar[int]
    size: int = 1


class Nobody(enum.Enum):
    pass


class Things(enum.Enum):
    THING = object()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Ticket, "Ticket: a date with now_op='past' cannot be enforced"),
        (Annotated[date, Field(ge=date(2020, 1, 1))], "a date with ge="),
        (Nested, "the alias all.0 is a path into other members"),
        (pydantic.FilePath, "a FilePath has to exist"),
        (pydantic.ByteSize, "use int"),
        (pydantic.Base64Str, "use Base64Bytes"),
        (pydantic.Json[int], "JSON inside a string"),
        (pydantic.ImportString, "use str"),
        (list[pydantic.NameEmail], "email-validator is not installed"),
        (Annotated[Annotated[User, pydantic.Tag("user")] | Annotated[Open, pydantic.Tag("open")],
                   pydantic.Discriminator(_tag)], "use the name of a field"),
        (Annotated[dict[str, int], Field(min_length=2)], "one name twice; use a list"),
        (set[list[int]], "cannot be hashed; use a list"),
        (set[User], "cannot be hashed; use a list"),
        (frozenset[tuple[Any, ...]], "cannot be hashed"),
        (dict[tuple[int, int], str], "a list of pairs"),
        (dict[int | str, int], "a list of pairs"),
        (Vanishing, "Vanishing.seed is an InitVar"),
        (Nobody, "has no members"),
        (Things, "has no JSON form"),
        (Literal[b"a"], "has no JSON form"),
        (list["Nowhere"], "the name of a type"),  # type: ignore[name-defined]  # noqa: F821
        (Annotated[str, Field(pattern="(?i)abc")], r"has '\(\?i', which"),
    ],
    ids=lambda value: str(getattr(value, "__name__", value))[:32],
)  # fmt: skip
def test_what_no_mask_can_hold_a_text_to_is_refused_where_it_is_asked_for(
    kind: Any, said: str
) -> None:
    with pytest.raises(InvalidConstraintError, match=said):
        gen("x", kind)
    with pytest.raises(InvalidConstraintError, match=said):
        JsonSchema.of(kind)


@pytest.mark.parametrize("kind", ["User", 3, [int], {"a": int}, complex, object])
def test_what_is_no_type_is_refused(kind: Any) -> None:
    with pytest.raises(ParameterError, match="cannot generate"):
        gen("x", kind)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"\Aab\z", "^ab$"),
        (r"(?P<year>[0-9]{4})-[\w.]+", r"(?<year>[0-9]{4})-[\w.]+"),
        (r"[\]\A]\\A", r"[\]\A]\\A"),
        (r"a(?:b|c)(?=d)", r"a(?:b|c)(?=d)"),
    ],
)
def test_anchors_and_names_of_groups_are_written_as_in_json_schema(
    pattern: str, expected: str
) -> None:
    assert ecma_pattern(pattern) == expected


@pytest.mark.parametrize(
    "pattern",
    [r"^\D$", r"^\W$", r"^\S$", r"^\s$", r"^\d$", r"^\w$", r"^[^\d]$", r"^[^\w]$", r"^[^\s]$",
     r"^[\s]$", r"^[\s\S]$", r"^.$", r"^.?\ba", r"a\b"],
)  # fmt: skip
def test_a_pattern_accepts_what_pydantic_reads(pattern: str) -> None:
    kind = Annotated[str, Field(pattern=pattern)]
    adapter, schema = pydantic.TypeAdapter(kind), JsonSchema.of(kind)
    texts = [
        *"a- 5\u0663\xe9\x85\ufeff\xa0\u2028Ⓐé😨",
        "éa",
        "-a",
        "aé",
        "a-",
        "ba",
        "ab",
        "\u200ca",
    ]
    accepted = [text for text in texts if match(schema, json.dumps(text, ensure_ascii=False))]
    assert accepted
    assert [adapter.validate_python(text) for text in accepted] == accepted


@pytest.mark.parametrize("pattern", ["[a-z&&[^b]]", "[[:alpha:]]", "(?x) a", "[a[b]]", "[a--b]"])
def test_a_pattern_that_json_schema_reads_differently_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidConstraintError, match="which JSON Schema's patterns do not"):
        ecma_pattern(pattern)


def test_classes_of_one_name_keep_their_own_members() -> None:
    def make(hint: Any) -> Any:
        return dataclasses.make_dataclass("Node", [("value", hint)])

    first, second = make(int), make(str)
    members = [("a", first), ("b", second), ("c", first), ("d", second)]
    pair = dataclasses.make_dataclass("Pair", members)
    text = '{{"a": {0}, "b": {1}, "c": {0}, "d": {1}}}'
    assert match(JsonSchema.of(pair), text.format('{"value": 1}', '{"value": "x"}'))
    assert not match(JsonSchema.of(pair), text.format('{"value": "x"}', '{"value": 1}'))


def test_a_class_used_often_is_written_once() -> None:
    kind: Any = dataclasses.make_dataclass("Leaf", [("value", int)])
    for level in range(30):
        kind = dataclasses.make_dataclass(f"Level{level}", [("left", kind), ("right", kind)])
    assert len(json.dumps(schema_of(kind))) < 10_000


def test_members_called_like_keywords_are_members() -> None:
    kind = TypedDict("Odd", {"default": Color, "enum": int, "$ref": str, "const": Color})  # type: ignore[misc]
    text = '{"default": "red", "enum": 1, "$ref": "#/a", "const": "blue"}'
    assert match(JsonSchema.of(kind), text)
    assert output_for(kind).parse(text)["default"] is Color.RED


def test_members_stand_in_the_order_of_declaration() -> None:
    assert list(schema_of(Film)["properties"]) == ["title", "year", "rating", "seen"]


def test_a_schema_for_a_prompt_names_its_formats() -> None:
    schema = readable_schema(json.loads(Tool.of(Box[date]).parameters))
    assert schema["properties"]["content"] == {"type": "string", "format": "date"}


def test_sets_are_written_in_one_order() -> None:
    assert to_json({"b", "a", "c"}) == ["a", "b", "c"]
    assert to_json({True: {1, 2}, Color.RED: 1}) == {"true": [1, 2], "red": 1}


CALLS: list[Any] = []


class Watched(BaseModel):
    size: int

    @pydantic.field_validator("size")
    @classmethod
    def seen(cls, value: int) -> int:
        CALLS.append(value)
        return value


def test_validators_run_when_a_text_is_read_and_not_when_it_is_constrained() -> None:
    CALLS.clear()
    assert match(JsonSchema.of(Watched), '{"size": 1}')
    assert CALLS == []
    output_for(Watched).parse('{"size": 1}')
    assert CALLS == [1]


def test_types_are_served_without_pydantic() -> None:
    code = """
import sys
sys.modules["pydantic"] = None
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Optional
from radixlang.constraints.typed_values import output_for, to_json
from radixlang.errors import InvalidConstraintError

@dataclass
class Point:
    x: int
    when: Optional[date] = None

value = output_for(Point).parse('{"x": 1, "when": "2024-02-29"}')
assert value == Point(1, date(2024, 2, 29)), value
assert to_json(value) == {"x": 1, "when": "2024-02-29"}
try:
    output_for(Annotated[int, range(5)])
except InvalidConstraintError as error:
    assert "pip install pydantic" in str(error), error
else:
    raise AssertionError("a bound was dropped")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
