"""Types against pydantic's TypeAdapter: what a constraint lets be written has one value for both.

Random texts of each type's constraint are read by us and by TypeAdapter; values that TypeAdapter
writes are accepted by the constraint. NamedTuples are left out: they are objects here, arrays
there.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import ipaddress
import json
import pickle
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar

import numpy as np
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter
from typing_extensions import NotRequired, Required, TypedDict

from radixlang.constraints.specs import JsonSchema, match
from radixlang.constraints.typed_values import output_for, to_json
from radixlang.records.typed_json import restored, types_of

NUM_WALKS = 12
UserId = NewType("UserId", int)
T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


@dataclasses.dataclass(frozen=True)
class Point:
    x: Annotated[int, Field(ge=0, le=9)]
    when: date


@dataclasses.dataclass
class Box(Generic[T]):
    content: T
    more: list[T] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Tree:
    value: bool
    children: list[Tree]


@pydantic.dataclasses.dataclass
class Strict:
    name: Annotated[str, Field(pattern="^[a-z]{1,5}$")]
    size: int = Field(default=1, gt=0)


class Movie(TypedDict, total=False):
    title: Required[str]
    year: Annotated[int, Field(ge=1888)]


class Plot(TypedDict):
    text: str
    score: NotRequired[float]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str = Field(max_length=4)


class Node(BaseModel):
    name: Color
    next: Node | None = None


class Order(BaseModel):
    order_id: int = Field(alias="orderId")
    total: Decimal
    placed: date
    tags: set[Literal["a", "b"]] = set()

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.order_id


class Open(BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: bool


class Stripped(BaseModel):
    model_config = pydantic.ConfigDict(str_strip_whitespace=True)
    name: str = Field(min_length=2, max_length=4)


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Wrapped(BaseModel, Generic[T]):
    inner: T


def _doubled(value: int) -> int:
    return 2 * value


UTC = timezone.utc
MOMENT = datetime(2024, 2, 29, 23, 59, 59, 123)
# a type, and values of it that TypeAdapter writes
CASES: list[tuple[Any, list[Any]]] = [
    (int, [-3]),
    (float, [0.5]),
    (bool, [True]),
    (UserId, [7]),
    (date, [date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)]),
    (time, [time(10), time(10, 0, 1, 5), time(23, 59, 59, tzinfo=UTC)]),
    (
        datetime,
        [
            MOMENT,
            MOMENT.replace(tzinfo=UTC),
            MOMENT.replace(tzinfo=timezone(timedelta(hours=5, minutes=30))),
        ],
    ),
    (timedelta, [timedelta(), timedelta(days=400, microseconds=3), timedelta(seconds=-1)]),
    (Decimal, [Decimal("1.50"), Decimal("1E+999"), Decimal("0E-10"), Decimal(-7)]),
    (uuid.UUID, [uuid.UUID(int=5)]),
    (ipaddress.IPv4Address, [ipaddress.ip_address("10.0.0.255")]),
    (
        ipaddress.IPv6Address,
        [ipaddress.ip_address(a) for a in ("::1", "2001:db8::", "1:2:3:4:5:6:7:8")],
    ),
    (ipaddress.IPv4Interface, [ipaddress.ip_interface("10.1.2.3/8")]),
    (ipaddress.IPv6Interface, [ipaddress.ip_interface("fe80::1/64")]),
    (
        ipaddress.IPv4Network,
        [
            ipaddress.ip_network(a)
            for a in ("10.0.0.0/8", "1.2.3.4/32", "0.0.0.0/0", "192.168.4.0/22")
        ],
    ),
    (
        ipaddress.IPv6Network,
        [ipaddress.ip_network(a) for a in ("2001:db8::/32", "::/0", "fe80::/64")],
    ),
    (Color, list(Color)),
    (Size, list(Size)),
    (Literal["a", 1, None], ["a", 1, None]),
    (Literal["1", 1, True], ["1", 1, True]),
    (date | None, [None, date(2023, 3, 1)]),
    (int | str, [1, "1"]),
    (float | int, [1, 1.5]),
    (Color | str, ["x"]),
    (date | None | list[date], [[date(2023, 3, 1)]]),
    (list[date], [[date(2023, 3, 1)]]),
    (set[int], [{1, 2}]),
    (frozenset[Color], [frozenset(Color)]),
    (set[tuple[int, bool]], [{(1, True)}]),
    (set, [{1, "a"}]),
    (tuple[int, date], [(1, date(2023, 3, 1))]),
    (tuple[bool, ...], [(True, False), ()]),
    (collections.deque[int], [collections.deque([1, 2])]),
    (collections.OrderedDict[str, int], [collections.OrderedDict(a=1)]),
    (collections.Counter[str], [collections.Counter("aab")]),
    (collections.defaultdict[str, list[int]], [collections.defaultdict(list, a=[1])]),
    (dict[str, int], [{"a": 1}]),
    (dict[int, str], [{-1: "a", 20: "b"}]),
    (dict[float, bool], [{1.5: True}]),
    (dict[bool, int], [{True: 1, False: 2}]),
    (dict[Literal["a", "b.c"], int], [{"b.c": 1, "a": 2}]),
    (dict[Color, bool], [{Color.BLUE: True}]),
    (dict[Size, bool], [{Size.LARGE: True}]),
    (dict[date, int], [{date(2024, 2, 29): 1}]),
    (dict[uuid.UUID, int], [{uuid.UUID(int=5): 1}]),
    (dict[Annotated[str, Field(pattern="^[a-c]$")], int], [{"a": 1}]),
    (Annotated[int, Field(ge=1, le=5)], [1, 5]),
    (Annotated[float, Field(gt=0, le=1)], [0.25]),
    (Annotated[int | None, Field(ge=1)], [None, 3]),
    (list[Annotated[str, Field(min_length=1, max_length=3)]], [["abc"]]),
    (Annotated[list[int], Field(min_length=1, max_length=2)], [[1]]),
    (Annotated[dict[str, bool], Field(min_length=1)], [{"a": True}]),
    (Annotated[set[Literal[1, 2, 3]], Field(min_length=2)], [{1, 3}]),
    (Annotated[Decimal, Field(ge=0)], [Decimal("12.50"), Decimal(0)]),
    (
        Annotated[Decimal, Field(gt=0, max_digits=5, decimal_places=2)],
        [Decimal("0.01"), Decimal("999.99")],
    ),
    (Annotated[Decimal, Field(max_digits=4)], [Decimal("-12.34"), Decimal(9999)]),
    (Annotated[int, AfterValidator(_doubled)], []),
    (
        Annotated[
            str, pydantic.StringConstraints(strip_whitespace=True, min_length=2, max_length=3)
        ],
        ["ab"],
    ),
    (Annotated[str, pydantic.StringConstraints(to_lower=True, pattern="^[A-Z]+$")], []),
    (pydantic.UUID4, [uuid.UUID("12345678-1234-4234-9234-123456789012")]),
    (pydantic.NaiveDatetime, [MOMENT]),
    (pydantic.AwareDatetime, [MOMENT.replace(tzinfo=UTC)]),
    (pydantic.Base64Bytes, [b"caf\xc3\xa9"]),
    (pydantic.IPvAnyAddress, [ipaddress.ip_address("::1")]),
    (pydantic.IPvAnyNetwork, [ipaddress.ip_network("10.0.0.0/8")]),
    (pydantic.IPvAnyInterface, [ipaddress.ip_interface("10.1.2.3/8")]),
    (
        pydantic.HttpUrl,
        [
            pydantic.HttpUrl("https://user:pw@example.org:8080/a/b?c=d&e#f"),
            pydantic.HttpUrl("http://127.0.0.1:8000/"),
        ],
    ),
    (
        pydantic.AnyUrl,
        [
            pydantic.AnyUrl("ftp://example.org/x"),
            pydantic.AnyUrl("mailto:ada@example.org"),
            pydantic.AnyUrl("file:///tmp/x"),
        ],
    ),
    (pydantic.WebsocketUrl, []),
    (pydantic.FileUrl, []),
    (pydantic.PostgresDsn, [pydantic.PostgresDsn("postgresql://u:p@h1:1,h2:2/db?x=1")]),
    (pydantic.RedisDsn, [pydantic.RedisDsn("redis://localhost:6379/0")]),
    (Point, [Point(3, date(2024, 2, 29))]),
    (Box[int], [Box(1, [2])]),
    (Box[date], [Box(date(2024, 2, 29))]),
    (Tree, [Tree(True, [Tree(False, [])])]),
    (Strict, [Strict("abc", 2)]),
    (Movie, [{"title": "M", "year": 2000}]),
    (Plot, [{"text": "t"}]),
    (list[Plot], [[{"text": "t", "score": 0.5}]]),
    (Cat, [Cat(kind="cat", lives=9)]),
    (Cat | Dog, [Dog(kind="dog", name="Rex")]),
    (Annotated[Cat | Dog, Field(discriminator="kind")], [Cat(kind="cat", lives=1)]),
    (Cat | Movie | None, [{"title": "M"}, None]),
    (Node, [Node(name=Color.RED, next=Node(name=Color.BLUE))]),
    (dict[str, list[Node]], [{"a": [Node(name=Color.RED)]}]),
    (Order, [Order(orderId=1, total=Decimal("1.50"), placed=date(2024, 2, 29), tags={"a"})]),
    (Open, [Open(a=True)]),
    (Stripped, [Stripped(name="abc")]),
    (Numbers, [Numbers([1, 2])]),
    (Wrapped[date], [Wrapped[date](inner=date(2024, 2, 29))]),
]
IDS = [str(getattr(kind, "__name__", kind))[:12] + f"-{i}" for i, (kind, _) in enumerate(CASES)]
each_type = pytest.mark.parametrize(("kind", "values"), CASES, ids=IDS)


def _as_json(kind: Any, text: str) -> str:
    """What a generation wrote as JSON: scalars are written bare, and strings among them quoted."""
    if isinstance(output_for(kind).constraint, JsonSchema):
        return text
    try:
        TypeAdapter(kind).validate_json(json.dumps(text))
    except ValueError:
        return text
    return json.dumps(text)


@each_type
def test_what_is_written_has_the_value_that_pydantic_reads(
    kind: Any, values: list[Any], compiler: Any, walk: Callable[..., str | None]
) -> None:
    output, adapter = output_for(kind), TypeAdapter(kind)
    compiled, seen = compiler.compile(output.constraint), 0
    for seed in range(NUM_WALKS):
        text = walk(compiled, np.random.default_rng(seed), 40)
        if text is None:
            continue
        value, expected = output.parse(text), adapter.validate_json(_as_json(kind, text))
        assert value == expected, text
        assert type(value) is type(expected), text
        seen += 1
    assert seen > 0


@each_type
def test_what_pydantic_writes_may_be_written(kind: Any, values: list[Any]) -> None:
    output, adapter = output_for(kind), TypeAdapter(kind)
    schema = JsonSchema.of(kind)
    for value in values:
        text = adapter.dump_json(value, by_alias=True, round_trip=True).decode()
        assert match(schema, text), (text, schema.schema)
        if isinstance(output.constraint, JsonSchema):
            assert output.parse(text) == value
        else:
            bare = text.strip('"')
            assert match(output.constraint, bare), bare
            assert output.parse(bare) == value


@each_type
def test_a_value_is_kept_and_read_back(kind: Any, values: list[Any]) -> None:
    kept = {str(place): value for place, value in enumerate(values)}
    data, types = (json.loads(json.dumps(part)) for part in (to_json(kept), types_of(kept)))
    for name, again in restored(data, types).items():
        assert again == kept[name]
        assert pickle.loads(pickle.dumps(again)) == kept[name]


OFFSETS = st.none() | st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))
STANDARD: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (date, st.dates()),
    (time, st.times(timezones=OFFSETS)),
    (datetime, st.datetimes(timezones=OFFSETS)),
    (timedelta, st.timedeltas(timedelta(days=-700_000_000), timedelta(days=700_000_000))),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20),
                          max_value=10**20, places=7)),
    (uuid.UUID, st.uuids()),
    (ipaddress.IPv4Address, st.ip_addresses(v=4)),
    (ipaddress.IPv6Address, st.ip_addresses(v=6)),
    (ipaddress.IPv4Network, st.builds(lambda a, n: ipaddress.ip_network((a, n), strict=False),
                                      st.ip_addresses(v=4), st.integers(0, 32))),
    (bytes, st.text(st.characters(exclude_characters="\x7f", codec="utf-8")).map(str.encode)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "strategy"), STANDARD, ids=[kind.__name__ for kind, _ in STANDARD]
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_that_pydantic_writes_is_read_alike(kind: Any, strategy: Any, data: Any) -> None:
    value = data.draw(strategy)
    text = TypeAdapter(kind).dump_json(value).decode()
    output = output_for(list[kind])
    assert match(output.constraint, f"[{text}]"), text
    (again,) = output.parse(f"[{text}]")
    assert again == value
    (again,) = output.parse(json.dumps(to_json([value])))
    assert again == value
    assert match(output.constraint, json.dumps(to_json([value]), ensure_ascii=False))


class Odd(BaseModel):
    """Its serializer and its validator undo nothing of each other."""

    day: Annotated[date, pydantic.PlainSerializer(lambda day: day.year)]
    size: Annotated[int, AfterValidator(_doubled)]
    names: set[str] = Field(validation_alias="givenNames", serialization_alias="names")


def test_a_model_with_serializers_of_its_own_is_kept_as_it_is() -> None:
    value = output_for(Odd).parse('{"day": "2024-02-29", "size": 2, "givenNames": ["a"]}')
    kept = {"odd": [value], "none": None}
    data, types = (json.loads(json.dumps(part)) for part in (to_json(kept), types_of(kept)))
    assert restored(data, types) == kept
