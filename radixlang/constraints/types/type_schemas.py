"""JSON schemas of Python types: the texts that a generation of the type may write.

Members are in the order of their declaration, which is the order of generation. Classes are
closed: they allow only the members that they declare. A class that contains itself is a `$ref`.
"""

from __future__ import annotations

import collections
import enum
import inspect
import re
import typing
from collections import abc
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

from radixlang.constraints.json_writing import to_json
from radixlang.constraints.types.pydantic_types import adapted, is_adapted
from radixlang.constraints.types.schema_parts import closed_object, inlined, keyed_object, merged
from radixlang.constraints.types.standard_types import standard_type
from radixlang.constraints.types.type_members import (
    Members,
    alias_value,
    call_name,
    is_alias,
    is_union,
    members_of,
    members_of_call,
    plain,
)
from radixlang.errors import InvalidConstraintError
from radixlang.json_types import Json, Schema, TypeForm

_SCALARS: dict[object, Schema] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    type(None): {"type": "null"},
    Any: {},
}
LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection, abc.MutableSequence, collections.deque)
SETS = (set, frozenset, abc.Set, abc.MutableSet)
MAPPINGS = (
    dict, abc.Mapping, abc.MutableMapping,
    collections.OrderedDict, collections.defaultdict, collections.Counter,
)  # fmt: skip
_HASHABLE = {"type": ["string", "number", "boolean", "null"]}


def schema_of(kind: TypeForm) -> Schema:
    """The JSON schema of a type.

    Raises:
        InvalidConstraintError: a type that JSON cannot hold.
    """
    builder = _Builder()
    return inlined(builder.schema(kind), builder.definitions)


def schema_of_call(function: Callable[..., object]) -> Schema:
    """The JSON schema of a function's arguments, as one object.

    Raises:
        InvalidConstraintError: an argument that cannot be given by name.
    """
    builder = _Builder()
    return inlined(builder.call(function), builder.definitions)


class _Builder:
    """Builds schemas of types; those of named types are in `definitions` and referred to."""

    def __init__(self) -> None:
        self.definitions: Schema = {}
        self._names: dict[object, str] = {}

    def schema(self, kind: TypeForm) -> Schema:
        """The schema of any type."""
        kind = plain(kind)
        if _hashable(kind) and kind in _SCALARS:
            return dict(_SCALARS[kind])
        standard = standard_type(kind)
        if standard is not None:
            return standard.schema
        if get_origin(kind) is Literal:
            return {"enum": constants(kind, get_args(kind))}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": constants(kind, tuple(kind))}
        if is_alias(kind):
            return self._named(kind, lambda: self.schema(alias_value(kind)))
        if is_adapted(kind):
            return merged(adapted(kind).schema(), self.definitions)
        if is_union(kind):
            return {"anyOf": [self.schema(arm) for arm in get_args(kind)]}
        if inspect.isroutine(kind):
            return self.call(kind)
        found = members_of(kind)
        if found is not None:
            return self._named(kind, lambda: self._object(_name(kind), found))
        return self._container(kind)

    def call(self, function: Callable[..., object]) -> Schema:
        """The schema of a function's arguments."""
        return self._object(call_name(function), members_of_call(function))

    def _named(self, kind: TypeForm, build: Callable[[], Schema]) -> Schema:
        if kind not in self._names:
            name = _free(_name(kind), self.definitions)
            self._names[kind] = name
            self.definitions[name] = {}  # reserves the name while its members are built
            self.definitions[name] = build()
        return {"$ref": f"#/$defs/{self._names[kind]}"}

    def _object(self, owner: str, members: Members) -> Schema:
        properties = {name: self._member(owner, name, hint) for name, hint in members.hints.items()}
        return closed_object(properties, list(members.required))

    def _member(self, owner: str, name: str, hint: TypeForm) -> Schema:
        try:
            return self.schema(hint)
        except InvalidConstraintError as error:
            raise InvalidConstraintError(f"{owner}.{name}: {error}") from None

    def _container(self, kind: TypeForm) -> Schema:
        origin, args = get_origin(kind) or kind, get_args(kind)
        if not isinstance(origin, type):
            raise _no_json_form(kind)
        if origin in MAPPINGS:
            key = self.schema(args[0]) if args else {}
            value = {"type": "integer"} if origin is collections.Counter else self._inner(args[1:])
            return keyed_object(key, value, str(kind))
        if origin in LISTS or (origin is tuple and is_open_tuple(kind)):
            return {"type": "array", "items": self._inner(args[:1])}
        if origin in SETS:
            return {"type": "array", "items": self._item_of_set(kind, args)}
        if origin is tuple:
            items = [self.schema(arm) for arm in args if arm != ()]  # 3.10 has () in tuple[()]
            if not items:
                return {"type": "array", "maxItems": 0}
            return {"type": "array", "prefixItems": items, "items": False,
                    "minItems": len(items), "maxItems": len(items)}  # fmt: skip
        raise _no_json_form(kind)

    def _inner(self, args: tuple[object, ...]) -> Schema:
        return self.schema(args[0]) if args else {}

    def _item_of_set(self, kind: TypeForm, args: tuple[object, ...]) -> Schema:
        item = plain(args[0]) if args else Any
        if item is Any:
            return dict(_HASHABLE)
        if not hashes(item):
            raise InvalidConstraintError(
                f"{kind!r} is a set of values that cannot be hashed; use a list"
            )
        return self.schema(item)


def _no_json_form(kind: TypeForm) -> InvalidConstraintError:
    if isinstance(kind, (str, typing.ForwardRef)):
        return InvalidConstraintError(
            f"{kind!r} is the name of a type, and there is nothing here to look it up in; give the "
            "type itself, or put it in a class or an alias at the top of a module"
        )
    return InvalidConstraintError(
        f"{kind!r} has no JSON form; use int, float, bool, str, None, Literal, an Enum, Union, "
        "list, tuple, set, dict, date, datetime, Decimal, UUID, a dataclass, a TypedDict, a "
        "NamedTuple or a pydantic model"
    )


def is_open_tuple(kind: TypeForm) -> bool:
    """Whether a tuple has any number of items: `tuple` and `tuple[int, ...]`, not `tuple[()]`."""
    args = get_args(kind)
    return args[-1] is Ellipsis if args else kind in (tuple, typing.Tuple)  # noqa: UP006


def hashes(kind: TypeForm) -> bool:
    """Whether values of a type are hashable."""
    kind = plain(kind)
    if is_union(kind) or get_origin(kind) is tuple:
        return all(arm is Ellipsis or hashes(arm) for arm in get_args(kind))
    if get_origin(kind) is Literal:
        return True
    if hasattr(kind, "__metadata__"):
        return hashes(get_args(kind)[0])
    if kind is Any:
        return False
    owner = get_origin(kind) or kind
    is_read_as_list = owner in (*LISTS, *SETS, *MAPPINGS) and owner is not frozenset
    return getattr(owner, "__hash__", None) is not None and not is_read_as_list


def constants(kind: TypeForm, values: tuple[object, ...]) -> list[Json]:
    """The values of a Literal or an Enum as JSON.

    Raises:
        InvalidConstraintError: there are no values, or one has no JSON form.
    """
    if not values:
        raise InvalidConstraintError(f"{kind!r} has no members, so no value can be written")
    return [_constant(kind, value) for value in values]


def _constant(kind: TypeForm, value: object) -> Json:
    found = value.value if isinstance(value, enum.Enum) else value
    is_plain = isinstance(found, (str, int, float, type(None), tuple, list))
    if not is_plain and (standard_type(type(found)) is None or isinstance(found, bytes)):
        raise InvalidConstraintError(
            f"{value!r} of {kind!r} has no JSON form; use strings or numbers"
        )
    return to_json(found)


def _hashable(kind: TypeForm) -> bool:
    try:
        hash(kind)
    except TypeError:
        return False
    return True


def _name(kind: TypeForm) -> str:
    """A name for `$defs`: `Box[int]` is Box_int."""
    origin = get_origin(kind)
    if origin is None:
        return str(getattr(kind, "__name__", kind))
    inner = [getattr(arg, "__name__", str(arg)) for arg in get_args(kind)]
    return re.sub(r"\W+", "_", "_".join([origin.__name__, *inner])).strip("_")


def _free(name: str, taken: Schema) -> str:
    number = 2
    found = name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found
