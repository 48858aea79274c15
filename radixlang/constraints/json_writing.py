"""From Python values to JSON data."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
from collections.abc import Iterable, Mapping

from radixlang.constraints.types.pydantic_types import adapted
from radixlang.constraints.types.schema_parts import key_text
from radixlang.constraints.types.standard_types import write_standard
from radixlang.json_types import Json


def to_json(value: object) -> Json:
    """A value as JSON data: classes as objects, enums as their values, dates as ISO 8601.

    Sets are sorted, so that equal values give equal data in every process.
    """
    if isinstance(value, enum.Enum):
        return to_json(value.value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value
    if isinstance(value, type):
        return value.__name__
    if hasattr(type(value), "__pydantic_validator__"):
        return adapted(type(value)).data_of(value)
    if dataclasses.is_dataclass(value):
        fields = [field for field in dataclasses.fields(value) if field.init]
        return {field.name: to_json(getattr(value, field.name)) for field in fields}
    return _parts_to_json(value)


def _parts_to_json(value: object) -> Json:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_json(value._asdict())
    if isinstance(value, Mapping):
        return {_name_of(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(to_json, value), key=lambda item: json.dumps(item, sort_keys=True))
    is_list = isinstance(value, (list, tuple, collections.deque)) or hasattr(value, "refs")
    if is_list and isinstance(value, Iterable):
        return [to_json(item) for item in value]
    try:
        text = write_standard(value)
    except ValueError:  # bytes that are no text
        text = None
    return str(value) if text is None else text


def _name_of(key: object) -> str:
    found = to_json(key)
    return key_text(found) if isinstance(found, (str, int, float)) else str(key)
