"""Types that pydantic describes and reads: models, bounds, validators, pydantic's own types.

pydantic is loaded only when such a type is met.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from typing import get_args, get_origin

from radixlang.constraints.types.type_members import is_alias, is_remark, is_union, plain
from radixlang.errors import InvalidConstraintError, ValueParseError
from radixlang.json_types import Json, Schema, TypeForm

_HOOKS = ("__get_pydantic_core_schema__", "__pydantic_validator__", "__pydantic_config__")


def is_adapted(kind: TypeForm) -> bool:
    """Whether a type is described and read by pydantic."""
    if get_origin(kind) is typing.Annotated:
        return not is_remark(kind)
    if is_union(kind):
        return any(map(_mentions, get_args(kind))) and _adapts(kind)
    owner = get_origin(kind) or kind
    is_its_own = isinstance(owner, type) and owner.__module__.startswith("pydantic")
    return is_its_own or any(hasattr(owner, hook) for hook in _HOOKS) or _has_field_defaults(owner)


def _mentions(kind: TypeForm) -> bool:
    """Whether a type contains one of pydantic's types. Decides about the arms of a union."""
    kind = plain(kind)
    if is_alias(kind):
        return False
    return (not is_union(kind) and is_adapted(kind)) or any(
        _mentions(arg) for arg in get_args(kind) if not isinstance(arg, (str, bytes, int))
    )


def _adapts(kind: TypeForm) -> bool:
    """Whether pydantic supports a whole union; it does not support Python 3.11's TypedDicts."""
    try:
        adapted(kind)
    except InvalidConstraintError:
        return False
    return True


def _has_field_defaults(owner: TypeForm) -> bool:
    """Whether a dataclass of the standard library uses pydantic's Field for a default."""
    if not (isinstance(owner, type) and dataclasses.is_dataclass(owner)):
        return False
    return any(type(field.default).__name__ == "FieldInfo" for field in dataclasses.fields(owner))


class Adapted:
    """A type through pydantic's TypeAdapter: its exact schema, and its values."""

    def __init__(self, kind: TypeForm) -> None:
        try:
            from radixlang.constraints.types.pydantic_schemas import make_adapter
        except ImportError as error:
            raise InvalidConstraintError(
                f"{kind} has bounds that pydantic reads: pip install pydantic"
            ) from error
        self._kind = kind
        self._adapter = make_adapter(kind)

    def schema(self) -> Schema:
        """The JSON schema, closed and exact: every text that it allows can be read.

        Raises:
            InvalidConstraintError: something in it cannot be enforced.
        """
        from radixlang.constraints.types.pydantic_schemas import exact_schema

        return exact_schema(self._adapter, self._kind)

    def read_text(self, text: str) -> object:
        """The value of a JSON text. The type's own validators run here.

        Raises:
            ValueParseError: a validator refuses it.
        """
        try:
            return self._adapter.validate_json(text)
        except Exception as error:  # a validator is the user's own, and so is what it raises
            name = getattr(self._kind, "__name__", str(self._kind))
            raise ValueParseError(f"{name} refuses {text}: {error}") from error

    def read(self, data: Json) -> object:
        """The value of JSON data."""
        return self.read_text(json.dumps(data))

    def data_of(self, value: object) -> Json:
        """A value as JSON data that `read` accepts."""
        data: Json = self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True)
        return data


def adapted(kind: TypeForm) -> Adapted:
    """A type with pydantic's adapter.

    Raises:
        InvalidConstraintError: pydantic does not support it.
    """
    try:
        return _cached(kind)
    except TypeError:  # metadata that cannot be hashed
        return Adapted(kind)


@functools.lru_cache(maxsize=512)
def _cached(kind: TypeForm) -> Adapted:
    return Adapted(kind)
