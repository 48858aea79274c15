"""Types of the standard library that are written as one text: dates, UUIDs, paths, addresses."""

from __future__ import annotations

import datetime
import decimal
import ipaddress
import pathlib
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from radixlang.constraints import text_patterns as patterns
from radixlang.constraints.types.schema_parts import mapped_schema
from radixlang.errors import ValueParseError
from radixlang.json_types import Json, Schema, TypeForm


@dataclass(frozen=True, slots=True)
class StandardType:
    """How a type is written: the `pattern` of the whole text (None: any), `read` and `write`."""

    pattern: str | None
    read: Callable[[str], object]
    write: Callable[[Any], str] = str  # of a value of this type, which only the key knows
    format: str = ""

    @property
    def schema(self) -> Schema:
        """The JSON schema of the text."""
        if self.pattern is None:
            return {"type": "string"}
        return {"type": "string", "pattern": patterns.anchored(self.pattern)}


def _plain_time(text: str) -> str:
    """ISO 8601 as Python 3.10 reads it: an offset in digits, a fraction of six."""
    text = re.sub(r"Z$", "+00:00", text)
    return re.sub(r"\.([0-9]+)", lambda found: "." + found[1].ljust(6, "0"), text)


def read_time(text: str) -> datetime.time:
    """A time of the day, with or without an offset."""
    return datetime.time.fromisoformat(_plain_time(text))


def read_datetime(text: str) -> datetime.datetime:
    """A date and a time, with or without an offset."""
    return datetime.datetime.fromisoformat(_plain_time(text))


_DURATION = re.compile(
    r"(-?)P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?"
    r"(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6}))?S)?)?"
)


def read_duration(text: str) -> datetime.timedelta:
    """An ISO 8601 duration; a year has 365 days and a month 30."""
    found = _DURATION.fullmatch(text)
    if found is None or text[-1] in "PT":
        raise ValueError(f"{text!r} is no ISO 8601 duration such as P1DT2H30M")
    numbers = [int(part or 0) for part in found.groups()[1:8]]
    years, months, weeks, days, hours, minutes, seconds = numbers
    length = datetime.timedelta(
        days=365 * years + 30 * months + days, weeks=weeks, hours=hours, minutes=minutes,
        seconds=seconds, microseconds=int((found[9] or "").ljust(6, "0")),
    )  # fmt: skip
    return -length if found[1] else length


def write_duration(value: datetime.timedelta) -> str:
    """An ISO 8601 duration in days and seconds."""
    sign, length = ("-", -value) if value.days < 0 else ("", value)
    fraction = f".{length.microseconds:06d}" if length.microseconds else ""
    clock = f"T{length.seconds}{fraction}S" if length.seconds or fraction else ""
    days = f"{length.days}D" if length.days or not clock else ""
    return f"{sign}P{days}{clock}"


def _iso(value: datetime.date | datetime.time) -> str:
    return str(value.isoformat())


def _read_decimal(text: str) -> decimal.Decimal:
    try:
        value = decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError(f"{text!r} is no decimal number") from None
    if not value.is_finite():
        raise ValueError(f"{text!r} is not finite")
    return value


STANDARD_TYPES: dict[type, StandardType] = {
    datetime.date: StandardType(patterns.DATE, datetime.date.fromisoformat, _iso, "date"),
    datetime.time: StandardType(patterns.TIME, read_time, _iso, "time"),
    datetime.datetime: StandardType(patterns.DATETIME, read_datetime, _iso, "date-time"),
    datetime.timedelta: StandardType(patterns.DURATION, read_duration, write_duration, "duration"),
    decimal.Decimal: StandardType(patterns.DECIMAL, _read_decimal, str, "decimal"),
    uuid.UUID: StandardType(patterns.UUID, uuid.UUID, str, "uuid"),
    bytes: StandardType(None, str.encode, bytes.decode),
    pathlib.Path: StandardType(None, pathlib.Path),
    pathlib.PurePath: StandardType(None, pathlib.PurePath),
    pathlib.PurePosixPath: StandardType(None, pathlib.PurePosixPath),
    pathlib.PureWindowsPath: StandardType(None, pathlib.PureWindowsPath),
    ipaddress.IPv4Address: StandardType(patterns.IPV4, ipaddress.IPv4Address, str, "ipv4"),
    ipaddress.IPv6Address: StandardType(patterns.IPV6, ipaddress.IPv6Address, str, "ipv6"),
    ipaddress.IPv4Interface: StandardType(
        patterns.IPV4_INTERFACE, ipaddress.IPv4Interface, str, "ipv4interface"
    ),
    ipaddress.IPv6Interface: StandardType(
        patterns.IPV6_INTERFACE, ipaddress.IPv6Interface, str, "ipv6interface"
    ),
    ipaddress.IPv4Network: StandardType(
        patterns.IPV4_NETWORK, ipaddress.IPv4Network, str, "ipv4network"
    ),
    ipaddress.IPv6Network: StandardType(
        patterns.IPV6_NETWORK, ipaddress.IPv6Network, str, "ipv6network"
    ),
}


def standard_type(kind: TypeForm) -> StandardType | None:
    """How a type of the standard library is written; None for others."""
    try:
        return STANDARD_TYPES.get(kind) if isinstance(kind, type) else None
    except TypeError:  # a type that cannot be hashed
        return None


def read_standard(kind: StandardType, data: Json) -> object:
    """The value of JSON data.

    Raises:
        ValueParseError: it is not a value of this type.
    """
    if kind.read is _read_decimal and isinstance(data, (int, float)) and data is not True:
        data = str(data)
    if not isinstance(data, str):
        raise ValueParseError(f"a string was expected, got {data!r}")
    return kind.read(data)


def write_standard(value: object) -> str | None:
    """The text of a value of a standard type; None for values of other types."""
    for kind in type(value).__mro__:
        found = STANDARD_TYPES.get(kind)
        if found is not None:
            return found.write(value)
    return None


_FORMATS = {kind.schema["pattern"]: kind.format for kind in STANDARD_TYPES.values() if kind.pattern}


def readable_schema(schema: Schema | bool) -> Schema | bool:
    """A schema for a prompt: the name of the format in place of a standard type's pattern."""
    return schema if isinstance(schema, bool) else mapped_schema(schema, _with_format)


def _with_format(schema: Schema) -> Schema:
    pattern = schema.get("pattern")
    name = _FORMATS.get(pattern) if isinstance(pattern, str) else None
    if name is None:
        return schema
    return {**{key: schema[key] for key in schema if key != "pattern"}, "format": name}
