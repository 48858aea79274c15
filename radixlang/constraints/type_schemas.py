"""JSON schemas of Python types: what a generation of that type may write.

Members stand in the order of their declaration, which is the order of generation. A class that
contains itself becomes a `$ref`.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

from radixlang.errors import InvalidConstraintError

_SCALARS: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    Any: {},
}
_LISTS = ("list", "Sequence", "Iterable", "Collection", "MutableSequence")
_SETS = ("set", "frozenset", "Set", "AbstractSet", "MutableSet")
_MAPPINGS = ("dict", "Mapping", "MutableMapping")


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type.

    Raises:
        InvalidConstraintError: a type that JSON cannot hold.
    """
    builder = _Builder()
    schema = builder.schema(kind)
    return {**schema, "$defs": builder.definitions} if builder.definitions else schema


def schema_of_call(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a function's arguments, as one object.

    Raises:
        InvalidConstraintError: an argument that cannot be given by name.
    """
    builder = _Builder()
    schema = builder.call(function)
    return {**schema, "$defs": builder.definitions} if builder.definitions else schema


class _Builder:
    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self._open: list[Any] = []
        self._repeated: set[str] = set()

    def schema(self, kind: Any) -> dict[str, Any]:
        """The schema of any kind."""
        if get_origin(kind) is typing.Annotated:
            return self.schema(get_args(kind)[0])
        if _hashable(kind) and kind in _SCALARS:
            return dict(_SCALARS[kind])
        if get_origin(kind) is Literal:
            return {"enum": list(get_args(kind))}
        if get_origin(kind) in (Union, types.UnionType):
            return {"anyOf": [self.schema(arm) for arm in get_args(kind)]}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        if hasattr(kind, "model_json_schema"):
            return self._model(kind)
        fields = _fields(kind)
        if fields is not None:
            return self._named(kind, *fields)
        if inspect.isroutine(kind):
            return self.call(kind)
        return self._container(kind)

    def call(self, function: Callable[..., Any]) -> dict[str, Any]:
        """The schema of a function's arguments."""
        hints = _hints(function)
        properties, required = {}, []
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise InvalidConstraintError(
                    f"argument {parameter} of {function.__name__} cannot be given by name"
                )
            properties[name] = self._member(function.__name__, name, hints.get(name, Any))
            if parameter.default is parameter.empty:
                required.append(name)
        return _object(properties, required)

    def _model(self, kind: Any) -> dict[str, Any]:
        try:
            schema: dict[str, Any] = dict(kind.model_json_schema())
        except (TypeError, RuntimeError) as error:  # what pydantic's own errors are
            first = str(error).splitlines()[0]
            raise InvalidConstraintError(
                f"{kind.__name__} has no JSON schema: {first}; give each field a type that JSON has"
            ) from error
        self.definitions.update(schema.pop("$defs", {}))
        return schema

    def _named(self, kind: Any, hints: dict[str, Any], required: list[str]) -> dict[str, Any]:
        name = kind.__name__
        if kind in self._open:
            self._repeated.add(name)
            return {"$ref": f"#/$defs/{name}"}
        self._open.append(kind)
        members = {key: self._member(name, key, hint) for key, hint in hints.items()}
        schema = _object(members, required)
        self._open.pop()
        if name in self._repeated:
            self.definitions[name] = schema
            return {"$ref": f"#/$defs/{name}"}
        return schema

    def _member(self, owner: str, name: str, hint: Any) -> dict[str, Any]:
        try:
            return self.schema(hint)
        except InvalidConstraintError as error:
            raise InvalidConstraintError(f"{owner}.{name}: {error}") from None

    def _container(self, kind: Any) -> dict[str, Any]:
        origin, args = get_origin(kind) or kind, get_args(kind)
        name = getattr(origin, "__name__", "")
        if name in _MAPPINGS:
            return {"type": "object", "additionalProperties": self._inner(args[1:])}
        if name in _LISTS or (name == "tuple" and (not args or args[-1] is Ellipsis)):
            return {"type": "array", "items": self._inner(args[:1])}
        if name in _SETS:
            return {"type": "array", "items": self._inner(args[:1])}
        if name == "tuple":
            items = [self.schema(arm) for arm in args]
            return {"type": "array", "prefixItems": items, "items": False,
                    "minItems": len(items), "maxItems": len(items)}  # fmt: skip
        raise InvalidConstraintError(
            f"{kind!r} has no JSON form; use int, float, bool, str, None, Literal, an Enum, Union, "
            "list, tuple, dict, a dataclass, a TypedDict, a NamedTuple or a pydantic model"
        )

    def _inner(self, args: tuple[Any, ...]) -> dict[str, Any]:
        return self.schema(args[0]) if args else {}


def _hashable(kind: Any) -> bool:
    try:
        hash(kind)
    except TypeError:
        return False
    return True


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required,
            "additionalProperties": False}  # fmt: skip


def _fields(kind: Any) -> tuple[dict[str, Any], list[str]] | None:
    """Member types and the names of those that must be there; None if it has no members."""
    if not isinstance(kind, type) and not typing.is_typeddict(kind):
        return None
    if dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        fields = [field for field in dataclasses.fields(kind) if field.init]
        needed = [field.name for field in fields
                  if field.default is dataclasses.MISSING
                  and field.default_factory is dataclasses.MISSING]  # fmt: skip
        return {field.name: hints[field.name] for field in fields}, needed
    if typing.is_typeddict(kind):
        hints = {key: _bare(hint) for key, hint in _hints(kind).items()}
        return hints, [key for key in hints if key in kind.__required_keys__]
    if hasattr(kind, "_fields"):
        hints = _hints(kind)
        defaults = getattr(kind, "_field_defaults", {})
        return {key: hints.get(key, Any) for key in kind._fields}, [
            key for key in kind._fields if key not in defaults
        ]
    return None


def _hints(owner: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(owner)
    except NameError as error:
        raise InvalidConstraintError(
            f"{owner.__name__}: {error}; a type written as text stands at its module's top level"
        ) from None


def _bare(hint: Any) -> Any:
    name = getattr(get_origin(hint), "_name", None)
    return get_args(hint)[0] if name in ("NotRequired", "Required") else hint
