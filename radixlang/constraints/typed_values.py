"""Typed values: the constraint that a type puts on a text, and the way back from text to value.

Scalars are written bare (`42`, `true`, a Literal's text); whatever has parts is written as
JSON. A text that is not a value of the type raises a ValueParseError with the text.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin

from radixlang.errors import ParameterError, ValueParseError

INT_PATTERN = r"-?(0|[1-9][0-9]{0,18})"
FLOAT_PATTERN = r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?"
_BOOLS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Output:
    """A type as an output: `constraint` bounds the text (None: anything), `parse` reads it.

    A `Tools` constraint is a kind of its own; its values are ToolCalls.
    """

    kind: Any
    constraint: Any = field(default=None, compare=False)

    def parse(self, text: str) -> Any:
        """The value that a text means.

        Raises:
            ValueParseError: it means none of this type; `partial` is the text.
        """
        try:
            return _parse(self.kind, text)
        except ValueParseError as error:
            raise ValueParseError(f"{error}; the whole text was {text!r}", text) from None
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
            raise ValueParseError(
                f"the generated text {text!r} is not a value of {type_name(self.kind)}: {error}",
                text,
            ) from error

    def convert(self, value: Any) -> Any:
        """A value as this type: text is parsed, anything else goes through its JSON form."""
        if isinstance(value, str):
            return value if self.kind is str else self.parse(value)
        try:
            return from_json(self.kind, to_json(value))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueParseError(f"{value!r} is not a value of {type_name(self.kind)}") from error


def output_for(kind: Any) -> Output:
    """The output that a type asks for.

    Raises:
        ParameterError: not a type that can be generated.
    """
    try:
        return _cached_output(kind)
    except TypeError:
        return _make_output(kind)  # a type that cannot be hashed


@functools.lru_cache(maxsize=512)
def _cached_output(kind: Any) -> Output:
    return _make_output(kind)


def _make_output(kind: Any) -> Output:
    from radixlang.constraints.specs import Choices, JsonSchema, Regex

    if kind is str:
        return Output(kind)
    if kind is int:
        return Output(kind, Regex(INT_PATTERN))
    if kind is float:
        return Output(kind, Regex(FLOAT_PATTERN))
    if kind is bool:
        return Output(kind, Choices(tuple(_BOOLS)))
    if get_origin(kind) is Literal:
        return Output(kind, Choices(tuple(map(_literal_text, get_args(kind)))))
    if _is_enum(kind):
        return Output(kind, Choices(tuple(str(member.value) for member in kind)))
    if not _is_structured(kind):
        raise ParameterError(
            f"cannot generate a value of {kind!r}; use int, float, bool, str, Literal, an Enum, "
            "Union, list, tuple, dict, a dataclass, a TypedDict, a pydantic model or a function"
        )
    return Output(kind, JsonSchema.of(kind))


def _literal_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _is_structured(kind: Any) -> bool:
    if get_origin(kind) is not None or kind in (list, tuple, dict, set, type(None), Any):
        return True
    if isinstance(kind, type):
        return (
            dataclasses.is_dataclass(kind)
            or typing.is_typeddict(kind)
            or hasattr(kind, "model_validate")
            or hasattr(kind, "_fields")
        )
    return inspect.isroutine(kind)


def _parse(kind: Any, text: str) -> Any:
    body = text.strip()
    if not isinstance(kind, type) and hasattr(kind, "parse"):
        return kind.parse(text)
    if kind is str:
        return text
    if kind is int:
        return int(_matched(INT_PATTERN, body))
    if kind is float:
        return _finite(float(_matched(FLOAT_PATTERN, body)))
    if kind is bool:
        return _BOOLS[body.lower()]
    if get_origin(kind) is Literal:
        return _one_of(get_args(kind), body)
    if _is_enum(kind):
        return next(member for member in kind if str(member.value) == _known(kind, body))
    return from_json(kind, json.loads(text))


def _matched(pattern: str, text: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise ValueError(f"it does not match {pattern}")
    return text


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("it is not finite")
    return value


def _one_of(options: tuple[Any, ...], text: str) -> Any:
    for option in options:
        if _literal_text(option) == text:
            return option
    raise ValueError(f"it is none of {', '.join(map(repr, options))}")


def _known(kind: Any, text: str) -> str:
    if all(str(member.value) != text for member in kind):
        raise ValueError(f"it is none of {', '.join(repr(member.value) for member in kind)}")
    return text


def from_json(kind: Any, data: Any) -> Any:
    """A JSON value as a value of the type.

    Raises:
        ValueParseError: it is none.
    """
    if get_origin(kind) is typing.Annotated:
        kind = get_args(kind)[0]
    if kind is Any:
        return data
    reader = _SCALARS.get(kind)
    if reader is not None:
        return reader(data)
    if get_origin(kind) is Literal:
        return _literal_of(kind, data)
    if _is_enum(kind):
        return kind(data)
    if _is_union(kind):
        return _union(kind, data)
    if hasattr(kind, "model_validate"):
        return _validated(kind, data)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        names = {field.name for field in dataclasses.fields(kind) if field.init}
        return kind(**_members(kind, _object(data), names))
    if typing.is_typeddict(kind):
        return _members(kind, _object(data))
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        return kind(**_members(kind, _object(data)))
    if inspect.isroutine(kind):
        return _members(kind, _object(data), set(inspect.signature(kind).parameters))
    return _container(kind, data)


def _validated(kind: Any, data: Any) -> Any:
    try:
        return kind.model_validate(data)
    except Exception as error:  # pydantic is the user's own; its error type is not ours to import
        raise ValueParseError(f"{kind.__name__} refuses {data!r}: {error}") from error


def _object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueParseError(f"an object was expected, got {data!r}")
    return data


def _members(kind: Any, data: dict[str, Any], names: set[str] | None = None) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    wanted = names if names is not None else set(hints)
    unknown = set(data) - wanted
    if unknown:
        raise ValueParseError(f"{type_name(kind)} has no member {sorted(unknown)[0]!r}")
    return {
        name: from_json(_unwrapped(hints.get(name, Any)), value) for name, value in data.items()
    }


def _unwrapped(hint: Any) -> Any:
    """NotRequired[X] and Required[X] as X; they are told by name for older Pythons' sake."""
    name = getattr(get_origin(hint), "_name", None)
    return get_args(hint)[0] if name in ("NotRequired", "Required") else hint


def _union(kind: Any, data: Any) -> Any:
    for arm in get_args(kind):
        try:
            return from_json(arm, data)
        except (ValueError, TypeError, KeyError):
            continue
    raise ValueParseError(f"{data!r} is no value of {type_name(kind)}")


def _literal_of(kind: Any, data: Any) -> Any:
    for option in get_args(kind):
        if option == data and type(option) is type(data):
            return option
    raise ValueParseError(f"{data!r} is no value of {type_name(kind)}")


def _container(kind: Any, data: Any) -> Any:
    origin, args = get_origin(kind) or kind, get_args(kind)
    if origin is dict or getattr(origin, "__name__", "") in ("Mapping", "MutableMapping"):
        key, value = args or (str, Any)
        return {_key(key, name): from_json(value, item) for name, item in _object(data).items()}
    if not isinstance(data, list):
        raise ValueParseError(f"a list was expected for {type_name(kind)}, got {data!r}")
    if origin is tuple and args and args[-1] is not Ellipsis:
        if len(data) != len(args):
            raise ValueParseError(f"{len(args)} items were expected, got {len(data)}")
        return tuple(from_json(arm, item) for arm, item in zip(args, data, strict=True))
    items = [from_json(args[0] if args else Any, item) for item in data]
    return origin(items) if origin in (tuple, set, frozenset) else items


def _key(kind: Any, text: str) -> Any:
    return text if kind is str or kind is Any else output_for(kind).parse(text)


def _expect(kind: type, data: Any) -> Any:
    if type(data) is not kind:
        raise ValueParseError(f"{kind.__name__} was expected, got {data!r}")
    return data


def _to_int(data: Any) -> int:
    if isinstance(data, float) and data.is_integer():
        return int(data)
    return int(_expect(int, data))


def _to_float(data: Any) -> float:
    return float(data) if type(data) is int else float(_expect(float, data))


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    int: _to_int,
    float: _to_float,
    bool: functools.partial(_expect, bool),
    str: functools.partial(_expect, str),
    type(None): functools.partial(_expect, type(None)),
    None: functools.partial(_expect, type(None)),
}


def to_json(value: Any) -> Any:
    """A value as JSON data: dataclasses and models as objects, enums as their values."""
    if isinstance(value, enum.Enum):
        return to_json(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_json(value._asdict())
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return [to_json(item) for item in value] if hasattr(value, "refs") else str(value)


def type_name(kind: Any) -> str:
    """A readable name of a type."""
    return getattr(kind, "__name__", None) if isinstance(kind, type) else str(kind)  # type: ignore[return-value]
