"""Values with their types as JSON, so that a file restores the values that were saved.

A value that JSON has no type for becomes an object with its type's name. Enums, dataclasses, named
tuples and pydantic models are named with their module and found only if it is loaded: reading a
file imports nothing and calls nothing but constructors of values.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import datetime
import enum
import sys
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, TypeAlias
from uuid import UUID

from radixlang.constraints.typed_values import to_json
from radixlang.constraints.types.pydantic_types import adapted, is_adapted
from radixlang.constraints.types.standard_types import STANDARD_TYPES
from radixlang.json_types import Json, JsonObject

_TYPE, _VALUE = "$type", "value"
_PLAIN = (str, int, float, bool, type(None))
# to JSON data and back, of the values of one type
Codec: TypeAlias = tuple[Callable[[Any], Json], Callable[[Any], object]]
_SCALARS: dict[type, Codec] = {
    **{
        kind: (text.write, text.read)
        for kind, text in STANDARD_TYPES.items()
        if kind.__module__ == "ipaddress"
    },
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.datetime: (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.time: (datetime.time.isoformat, datetime.time.fromisoformat),
    datetime.timedelta: (
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda data: datetime.timedelta(*data),
    ),
    Decimal: (str, Decimal),
    Fraction: (str, Fraction),
    UUID: (str, UUID),
    complex: (str, complex),
    bytes: (
        lambda value: base64.b64encode(value).decode("ascii"),
        lambda data: base64.b64decode(data, validate=True),
    ),
}
_SEQUENCES: dict[type, Callable[[Any], object]] = {
    tuple: tuple, set: set, frozenset: frozenset, collections.deque: collections.deque,
}  # fmt: skip
_NAMED: dict[str, type] = {f"{kind.__module__}:{kind.__qualname__}": kind
                           for kind in (*_SCALARS, *_SEQUENCES)}  # fmt: skip


def types_of(values: Mapping[str, object]) -> JsonObject:
    """The typed form of those values that their plain JSON would not restore.

    A value that its typed form would not restore either is left out.
    """
    return {
        name: coded
        for name, value in values.items()
        if (coded := _coded_or_none(value)) is not None and coded != to_json(value)
    }


def restored(values: Mapping[str, object], types: Mapping[str, Json]) -> dict[str, object]:
    """The original values, from their JSON data and the result of `types_of`.

    A value whose type is not found (its module is not loaded, or no longer has it) stays JSON.
    """
    return {
        name: _value_or(value, types[name]) if name in types else value
        for name, value in values.items()
    }


def _coded_or_none(value: object) -> Json:
    try:
        coded = _encode(value)
        same = _decode(coded)
        return coded if type(same) is type(value) and same == value else None
    except Exception:  # a type with its own idea of equality, construction or dumping
        return None


def _value_or(value: object, coded: Json) -> object:
    try:
        return _decode(coded)
    except Exception:
        return value


def _encode(value: object) -> Json:
    kind = type(value)
    if kind in _PLAIN and isinstance(value, _PLAIN):
        return value
    if kind is list and isinstance(value, list):
        return [_encode(item) for item in value]
    if kind is dict and isinstance(value, dict):
        return _encode_dict(value)
    if kind in _SCALARS:
        return _tagged(kind, _SCALARS[kind][0](value))
    if kind in _SEQUENCES and isinstance(value, Iterable):
        return _tagged(kind, [_encode(item) for item in value])
    if isinstance(value, enum.Enum):
        return _tagged(kind, value.name)
    if isinstance(value, PurePath):
        return {_TYPE: "pathlib:Path", _VALUE: str(value)}
    if hasattr(value, "model_fields_set"):
        return _tagged(kind, _encode_model(value))
    if is_adapted(kind):
        return _tagged(kind, adapted(kind).data_of(value))
    if dataclasses.is_dataclass(value):
        return _tagged(kind, {f.name: _encode(getattr(value, f.name))
                              for f in dataclasses.fields(value)})  # fmt: skip
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _tagged(kind, {name: _encode(item) for name, item in value._asdict().items()})
    return to_json(value)


def _encode_dict(value: dict[object, object]) -> Json:
    if _TYPE not in value and all(type(key) is str for key in value):
        return {str(key): _encode(item) for key, item in value.items()}
    return {_TYPE: "builtins:dict",
            _VALUE: [[_encode(key), _encode(item)] for key, item in value.items()]}  # fmt: skip


def _encode_model(value: Any) -> JsonObject:  # pydantic is optional
    """A pydantic model by its fields; its serializers and validators do not run."""
    members = {**value.__dict__, **(value.__pydantic_extra__ or {})}
    return {"fields": {name: _encode(item) for name, item in members.items()},
            "set": sorted(value.model_fields_set)}  # fmt: skip


def _tagged(kind: type, data: Json) -> JsonObject:
    return {_TYPE: f"{kind.__module__}:{kind.__qualname__}", _VALUE: data}


def _decode(data: Json) -> object:
    if isinstance(data, list):
        return [_decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if _TYPE not in data:
        return {key: _decode(item) for key, item in data.items()}
    held: Any = data[_VALUE]  # in the form of its type; anything else raises, and stays JSON
    name, value = str(data[_TYPE]), held
    if name == "builtins:dict":
        return {_decode(key): _decode(item) for key, item in value}
    if name == "pathlib:Path":
        return Path(value)
    kind = _NAMED.get(name, object)
    if kind in _SCALARS:
        return _SCALARS[kind][1](value)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_decode(value))
    return _construct(_loaded(name), value)


def _construct(kind: type, value: Any) -> object:  # a value in the form of its kind
    if issubclass(kind, enum.Enum):
        return kind[value]
    if hasattr(kind, "model_construct"):
        fields = {name: _decode(item) for name, item in value["fields"].items()}
        return kind.model_construct(_fields_set=set(value["set"]), **fields)
    if is_adapted(kind):
        return adapted(kind).read(value)
    parts = {name: _decode(item) for name, item in value.items()}
    if not dataclasses.is_dataclass(kind):
        if not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            raise TypeError(f"{kind} is no type of values")
        return kind(**parts)
    given = [field.name for field in dataclasses.fields(kind) if field.init]
    build: Any = kind  # a class whose arguments only it knows
    made = build(**{name: parts.pop(name) for name in given})
    for name, item in parts.items():
        object.__setattr__(made, name, item)
    return made


def _loaded(name: str) -> type:
    """The class of this name, in a module that is loaded."""
    module, _, path = name.partition(":")
    found: object = sys.modules[module]
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, type):
        raise TypeError(f"{name} is no class")
    return found
