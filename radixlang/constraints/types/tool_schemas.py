"""A tool's name, the schema of its arguments and its description, from a function or a dict."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from radixlang.constraints.types.schema_parts import closed_object
from radixlang.constraints.types.type_members import class_of
from radixlang.constraints.types.type_schemas import schema_of, schema_of_call
from radixlang.errors import InvalidConstraintError

# the keys of the schema in the common formats: chat templates, MCP, two vendors
_SCHEMA_KEYS = ("parameters", "inputSchema", "input_schema")
Parts: TypeAlias = tuple[str, Any, str]  # the schema in any form that Tool makes JSON text of
_NO_ARGUMENTS = closed_object({}, [])


def tool_name(function: Callable[..., object]) -> str:
    """The name of a function, of what a partial calls, or of a callable object's class.

    Raises:
        InvalidConstraintError: it has no name that a model could write.
    """
    inner = function.func if isinstance(function, functools.partial) else function
    name = getattr(inner, "__name__", None) or type(inner).__name__
    if not name.isidentifier():
        raise InvalidConstraintError(
            f"the tool {function!r} has no name that a model can write; use def name(…)"
        )
    return str(name)


def parts_of_function(function: Callable[..., object]) -> Parts:
    """Name, schema of the arguments and description of a function or a class.

    Raises:
        InvalidConstraintError: it has no name, is a generator, or has an argument without a schema.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidConstraintError(
            f"the tool {tool_name(function)} yields; a tool returns one answer, such as a list"
        )
    inner = function.func if isinstance(function, functools.partial) else function
    is_class = isinstance(class_of(function), type)
    schema = schema_of(function) if is_class else schema_of_call(function)
    return tool_name(function), schema, inspect.cleandoc(inner.__doc__ or "")


def parts_of_mapping(tool: Mapping[str, object]) -> Parts:
    """Name, schema of the arguments and description of a tool that is described by a dict.

    Raises:
        InvalidConstraintError: it has no name, or has its schema under an unknown key.
    """
    inner = tool.get("function", tool)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise InvalidConstraintError(f"a tool needs a name, got {dict(tool)!r}")
    given = [key for key in _SCHEMA_KEYS if inner.get(key) is not None]
    if len(given) > 1:
        raise InvalidConstraintError(
            f"the tool {inner['name']!r} has {' and '.join(given)}; keep one of them"
        )
    if not given:
        _refuse_other_keys(inner)
    schema = inner[given[0]] if given else _NO_ARGUMENTS
    return inner["name"], schema, str(inner.get("description") or "")


def _refuse_other_keys(inner: Mapping[str, object]) -> None:
    for key, value in inner.items():
        if isinstance(value, Mapping) and {"properties", "$ref", "anyOf"} & value.keys():
            raise InvalidConstraintError(
                f"the tool {inner['name']!r} has its schema under {key!r}; "
                f"the key is one of {', '.join(_SCHEMA_KEYS)}"
            )
