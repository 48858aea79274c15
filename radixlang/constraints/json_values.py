"""Values of a type from JSON data, and values as JSON data that can be read again.

Reading may run the user's code (validators, `__post_init__`), so it belongs on the program's
thread.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import json
import math
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeGuard, TypeVar, get_args, get_origin

from radixlang.constraints.json_writing import to_json
from radixlang.constraints.text_patterns import FLOAT_PATTERN, INT_PATTERN
from radixlang.constraints.types.pydantic_types import adapted, is_adapted
from radixlang.constraints.types.schema_parts import key_text
from radixlang.constraints.types.standard_types import read_standard, standard_type
from radixlang.constraints.types.type_members import (
    Members,
    alias_value,
    call_name,
    class_of,
    is_alias,
    is_union,
    members_of,
    members_of_call,
    plain,
)
from radixlang.constraints.types.type_schemas import LISTS, MAPPINGS, SETS, constants, is_open_tuple
from radixlang.errors import ValueParseError
from radixlang.json_types import Json, TypeForm

T = TypeVar("T")


def from_json(kind: TypeForm, data: Json) -> object:
    """A JSON value as a value of the type.

    Raises:
        ValueParseError: it is not a value of the type.
    """
    kind = plain(kind)
    if kind is Any:
        return data
    reader = _scalar(kind)
    if reader is not None:
        return reader(data)
    if get_origin(kind) is Literal:
        return _constant(kind, get_args(kind), data)
    if is_enum(kind):
        return _constant(kind, tuple(kind), data)
    if is_alias(kind):
        return from_json(alias_value(kind), data)
    if is_adapted(kind):
        return adapted(kind).read(data)
    if is_union(kind):
        return _union(kind, data)
    members = members_of(kind)
    if members is not None:
        return _instance(kind, members, data)
    return _container(kind, data)


def is_enum(kind: TypeForm) -> TypeGuard[type[enum.Enum]]:
    """Whether a type is an Enum."""
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def type_name(kind: TypeForm) -> str:
    """A readable name of a type."""
    is_named = isinstance(kind, type) or inspect.isroutine(kind)
    return str(getattr(kind, "__name__", kind) if is_named and not get_args(kind) else kind)


def _scalar(kind: TypeForm) -> Callable[[Json], object] | None:
    standard = standard_type(kind)
    if standard is not None:
        return functools.partial(read_standard, standard)
    try:
        return _SCALARS.get(kind)
    except TypeError:  # a type that cannot be hashed
        return None


def _constant(kind: TypeForm, options: tuple[object, ...], data: Json) -> object:
    """The option of a Literal or an Enum whose JSON form this is; true is not 1."""
    for option in options:
        found = to_json(option)
        if found == data and type(found) is type(data):
            return option
    raise ValueParseError(f"{data!r} is no value of {type_name(kind)}")


def _union(kind: TypeForm, data: Json) -> object:
    """The value by the first arm that accepts it; arms that need no conversion go first."""
    for arm in sorted(get_args(kind), key=lambda arm: _converts(plain(arm), data)):
        try:
            return from_json(arm, data)
        except (ValueError, TypeError, KeyError):
            continue
    raise ValueParseError(f"{data!r} is no value of {type_name(kind)}")


def _converts(arm: TypeForm, data: Json) -> bool:
    if isinstance(data, str):
        return is_enum(arm)
    return (arm is float and type(data) is int) or (arm is int and type(data) is float)


def arguments_from_json(function: Callable[..., object], data: Json) -> dict[str, object]:
    """JSON data as the arguments of a function, typed by its annotations.

    Raises:
        ValueParseError: an argument is unknown, missing, or of another type.
    """
    return _members(call_name(function), "argument", members_of_call(function), data)


def _instance(kind: TypeForm, members: Members, data: Json) -> object:
    read = _members(type_name(kind), "member", members, data)
    owner = class_of(kind)
    if typing.is_typeddict(owner) or hasattr(owner, "__required_keys__"):
        return read
    return owner(**read) if isinstance(owner, type) else read


def _members(owner: str, word: str, members: Members, data: Json) -> dict[str, object]:
    values = _object(data)
    for name in values:
        if name not in members.hints:
            raise ValueParseError(f"{owner} has no {word} {name!r}")
    for name in members.required:
        if name not in values:
            raise ValueParseError(f"{owner} needs the {word} {name!r}")
    return {name: _member(name, members.hints[name], value) for name, value in values.items()}


def _member(name: str, hint: TypeForm, value: Json) -> object:
    try:
        return from_json(hint, value)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueParseError(f"{name}: {error}") from error


def _object(data: Json) -> Mapping[str, Json]:
    if not isinstance(data, dict):
        raise ValueParseError(f"an object was expected, got {data!r}")
    return data


def _container(kind: TypeForm, data: Json) -> object:
    origin, args = get_origin(kind) or kind, get_args(kind)
    if origin in MAPPINGS:
        return _mapping(origin, args, _object(data))
    if not isinstance(data, list):
        raise ValueParseError(f"a list was expected for {type_name(kind)}, got {data!r}")
    if origin is tuple and not is_open_tuple(kind):
        arms = [arm for arm in args if arm != ()]
        if len(data) != len(arms):
            raise ValueParseError(f"{len(arms)} items were expected, got {len(data)}")
        return tuple(from_json(arm, item) for arm, item in zip(arms, data, strict=True))
    items = [from_json(args[0] if args else Any, item) for item in data]
    if origin in (tuple, frozenset, collections.deque):
        return origin(items)
    if origin in SETS:
        return set(items)
    if origin in LISTS:
        return items
    raise ValueParseError(f"{type_name(kind)} is no type that JSON is read as")


def _mapping(origin: TypeForm, args: tuple[object, ...], data: Mapping[str, Json]) -> object:
    is_counter = origin is collections.Counter
    key, value = (args[0] if args else str, int) if is_counter else args or (str, Any)
    found = {_key(key, text): from_json(value, item) for text, item in data.items()}
    if origin is collections.defaultdict:
        made = class_of(plain(value))
        return collections.defaultdict(made if isinstance(made, type) else None, found)
    return origin(found) if origin in (collections.OrderedDict, collections.Counter) else found


def _key(kind: TypeForm, text: str) -> object:
    """The name of a JSON member as a value of the key's type."""
    kind = plain(kind)
    if kind is str or kind is Any:
        return text
    return from_json(kind, text) if is_adapted(kind) or is_union(kind) else read_text(kind, text)


def _expect(kind: type[T], data: Json) -> T:
    if not isinstance(data, kind) or type(data) is not kind:
        raise ValueParseError(f"{kind.__name__} was expected, got {data!r}")
    return data


def _to_int(data: Json) -> int:
    if isinstance(data, float) and data.is_integer():
        return int(data)
    return _expect(int, data)


def _to_float(data: Json) -> float:
    return float(data) if type(data) is int else _expect(float, data)


class _Parser(Protocol):
    """A constraint that reads its own texts: Tools."""

    def parse(self, text: str) -> object: ...


BOOLS = {"true": True, "false": False}
_SCALARS: dict[TypeForm, Callable[[Json], object]] = {
    int: _to_int,
    float: _to_float,
    bool: functools.partial(_expect, bool),
    str: functools.partial(_expect, str),
    type(None): functools.partial(_expect, type(None)),
}


def read_text(kind: TypeForm, text: str) -> object:
    """The value of a text as a gen of that type writes it: scalars bare, the rest as JSON.

    Raises:
        ValueParseError: the text is not a value of this type; `partial` is the text.
    """
    try:
        return _parse(kind, text)
    except ValueParseError as error:
        raise ValueParseError(f"{error}; the whole text was {text!r}", text) from (error.__cause__)
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise ValueParseError(
            f"the generated text {text!r} is not a value of {type_name(kind)}: {error}",
            text,
        ) from error


def bare_options(kind: TypeForm) -> dict[str, object] | None:
    """Texts of a Literal or an Enum with their values; None if two are written alike."""
    if get_origin(kind) is Literal:
        values = get_args(kind)
    elif is_enum(kind):
        values = tuple(kind)
    else:
        return None
    texts = map(_bare_text, constants(kind, values))
    found = dict(zip(texts, values, strict=True))
    return found if len(found) == len(values) else None


def _bare_text(data: Json) -> str:
    return key_text(data) if isinstance(data, (str, int, float)) else json.dumps(data)


def _has_parser(kind: TypeForm) -> TypeGuard[_Parser]:
    return not isinstance(kind, type) and hasattr(kind, "parse")


def _parse(kind: TypeForm, text: str) -> object:
    body = text.strip()
    if _has_parser(kind):
        return kind.parse(text)
    if kind is str:
        return text
    if kind is int:
        return int(_matched(INT_PATTERN, body))
    if kind is float:
        return _finite(float(_matched(FLOAT_PATTERN, body)))
    if kind is bool:
        return BOOLS[body.lower()]
    standard = standard_type(kind)
    if standard is not None:
        return standard.read(body if standard.pattern else text)
    options = bare_options(kind)
    if options is not None:
        return _one_of(options, body)
    return adapted(kind).read_text(text) if is_adapted(kind) else from_json(kind, json.loads(text))


def _matched(pattern: str, text: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise ValueError(f"it does not match {pattern}")
    return text


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("it is not finite")
    return value


def _one_of(options: dict[str, object], text: str) -> object:
    if text not in options:
        raise ValueError(f"it is none of {', '.join(map(repr, options))}")
    return options[text]
