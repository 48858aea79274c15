"""Python types taken apart: their plain form, and the members of a class or a call."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Union, get_args, get_origin

from radixlang.errors import InvalidConstraintError
from radixlang.json_types import TypeForm

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_MARKS = ("NotRequired", "Required", "ReadOnly", "Final")


@dataclass(frozen=True, slots=True)
class Members:
    """Types by name in the order of declaration, and the required names."""

    hints: Mapping[str, object]
    required: tuple[str, ...]


def plain(kind: TypeForm) -> object:
    """A type without the parts that do not restrict its values.

    These are NewType, marks such as Required, aliases, and text in Annotated. A TypeVar becomes its
    bound.
    """
    while True:
        if kind is None:
            return type(None)
        if hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        elif _mark(kind) is not None or is_remark(kind):
            kind = get_args(kind)[0]
        elif isinstance(kind, TypeVar):
            arms = kind.__constraints__
            kind = functools.reduce(operator.or_, arms) if arms else kind.__bound__ or Any
        else:
            return kind


def _mark(kind: TypeForm) -> str | None:
    """The name of a mark around a type; names work for older Pythons too."""
    name = getattr(get_origin(kind), "_name", None)
    return name if name in _MARKS else None


def is_remark(kind: TypeForm) -> bool:
    """Whether a type is Annotated with text only."""
    if get_origin(kind) is not typing.Annotated:
        return False
    notes = getattr(kind, "__metadata__", ())
    return all(isinstance(note, str) or type(note).__name__ == "Doc" for note in notes)


def is_union(kind: TypeForm) -> bool:
    """Whether it is a Union, in either spelling."""
    return get_origin(kind) in (Union, types.UnionType)


def is_alias(kind: TypeForm) -> bool:
    """Whether a type is the alias of a `type` statement, with or without arguments."""
    return type(get_origin(kind) or kind).__name__ == "TypeAliasType"


def alias_value(kind: TypeForm) -> object:
    """The type that an alias stands for."""
    origin: Any = get_origin(kind) or kind  # a TypeAliasType, which 3.10 and 3.11 lack
    names = vars(sys.modules.get(origin.__module__, types.ModuleType("nowhere")))
    held = types.SimpleNamespace(__annotations__={"value": origin.__value__}, __name__=str(origin))
    value = _hints(held, names)["value"]  # names in it that are text are found in its module
    return _substituted(value, dict(zip(origin.__type_params__, get_args(kind), strict=False)))


def class_of(kind: TypeForm) -> object:
    """The class behind `Box` and `Box[int]`."""
    return get_origin(kind) or kind


def members_of(kind: TypeForm) -> Members | None:
    """Members of a dataclass, a TypedDict, a NamedTuple or a function; None for other types.

    Raises:
        InvalidConstraintError: a member's type is a name that is not found.
    """
    owner = class_of(kind)
    if typing.is_typeddict(owner) or hasattr(owner, "__required_keys__"):
        return _of_typed_dict(kind, owner)
    if isinstance(owner, type) and dataclasses.is_dataclass(owner):
        return _of_dataclass(kind, owner)
    if isinstance(owner, type) and issubclass(owner, tuple) and hasattr(owner, "_fields"):
        hints = _class_hints(kind)
        defaults = getattr(owner, "_field_defaults", {})
        return Members({name: hints.get(name, Any) for name in owner._fields},
                       tuple(name for name in owner._fields if name not in defaults))  # fmt: skip
    if inspect.isroutine(kind):
        return members_of_call(kind)
    return None


def members_of_call(function: Callable[..., object]) -> Members:
    """The arguments of a function.

    Raises:
        InvalidConstraintError: an argument cannot be given by name, or its type is not found.
    """
    hints, needed = _hints(_annotated_callable(function)), []
    found: dict[str, TypeForm] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidConstraintError(
                f"argument {parameter} of {call_name(function)} cannot be given by name"
            )
        found[name] = hints.get(name, Any)
        if parameter.default is parameter.empty:
            needed.append(name)
    return Members(found, tuple(needed))


def call_name(function: object) -> str:
    """The name of a function, a partial or a callable object in messages."""
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__))


def _annotated_callable(function: object) -> object:
    """The object with the annotations: the function of a partial, `__call__` of an object."""
    inner = function.func if isinstance(function, functools.partial) else function
    if inspect.isroutine(inner) or inspect.isclass(inner):
        return inner
    return type(inner).__call__


def _of_typed_dict(kind: TypeForm, owner: object) -> Members:
    needed: frozenset[str] = getattr(owner, "__required_keys__", frozenset())
    hints = _substituted_all(_hints(owner), _own_binding(kind))
    # a mark in an annotation that was text when the class was made is known only now
    told = {name: _required_mark(hint) for name, hint in hints.items()}
    return Members(hints, tuple(
        name for name, mark in told.items()
        if mark == "Required" or (mark is None and name in needed)
    ))  # fmt: skip


def _required_mark(hint: TypeForm) -> str | None:
    while True:
        mark = _mark(hint)
        if mark in ("Required", "NotRequired"):
            return mark
        if mark is None and get_origin(hint) is not typing.Annotated:
            return None
        hint = get_args(hint)[0]


def _of_dataclass(kind: TypeForm, owner: type[DataclassInstance]) -> Members:
    _refuse_init_only(owner)
    hints = _class_hints(kind)
    fields = [field for field in dataclasses.fields(owner) if field.init]
    return Members({field.name: hints[field.name] for field in fields}, tuple(
        field.name for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ))  # fmt: skip


def _refuse_init_only(owner: type[DataclassInstance]) -> None:
    """Refuse an InitVar: the value does not keep it, so it could not be saved and read back."""
    parameters = inspect.signature(owner).parameters
    fields = {field.name for field in dataclasses.fields(owner)}
    for name, parameter in parameters.items():
        is_pseudo = name in getattr(owner, "__dataclass_fields__", {}) and name not in fields
        if is_pseudo and parameter.default is parameter.empty:
            raise InvalidConstraintError(
                f"{owner.__name__}.{name} is an InitVar, which no value keeps; give it a default "
                "or make it a field"
            )


def _class_hints(kind: TypeForm) -> dict[str, TypeForm]:
    """Types of a class's members, with type variables replaced class by class."""
    owner = class_of(kind)
    bindings = _bindings(kind)
    if not any(bindings.values()):
        return _hints(owner)
    found: dict[str, TypeForm] = {}
    for parent in reversed(owner.__mro__ if isinstance(owner, type) else ()):
        own = inspect.get_annotations(parent)
        if own:
            hints = _hints(parent)
            binding = bindings.get(parent, {})
            found |= {name: _substituted(hints[name], binding) for name in own}
    return found


def _own_binding(kind: TypeForm) -> dict[object, TypeForm]:
    parameters = getattr(class_of(kind), "__parameters__", ())
    return dict(zip(parameters, get_args(kind), strict=False))


def _bindings(kind: TypeForm) -> dict[object, dict[object, TypeForm]]:
    """The type variables of each parent class of `Box[int]`, with their values."""
    owner, own = class_of(kind), _own_binding(kind)
    found = {owner: own}
    for base in owner.__dict__.get("__orig_bases__", getattr(owner, "__bases__", ())):
        if class_of(base) not in (Generic, Protocol, object):
            found |= _bindings(_substituted(base, own))
    return found


def _substituted_all(
    hints: dict[str, TypeForm], binding: dict[object, TypeForm]
) -> dict[str, TypeForm]:
    return {name: _substituted(hint, binding) for name, hint in hints.items()}


def _substituted(hint: TypeForm, binding: dict[object, TypeForm]) -> TypeForm:
    """A type with its type variables replaced."""
    if isinstance(hint, TypeVar):
        return binding.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not binding or not parameters or isinstance(hint, type):
        return hint
    generic: Any = hint  # it has parameters, so it takes arguments
    return generic[tuple(binding.get(name, name) for name in parameters)]


def _hints(owner: object, names: dict[str, object] | None = None) -> dict[str, TypeForm]:
    name = getattr(owner, "__name__", str(owner))
    try:
        return typing.get_type_hints(owner, names, include_extras=True)
    except NameError as error:
        raise InvalidConstraintError(
            f"{name}: {error}; a type written as text stands at its module's top level"
        ) from None
    except TypeError as error:
        raise InvalidConstraintError(f"{name}: {error}") from None
