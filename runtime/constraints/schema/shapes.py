"""What the value of each keyword of a JSON schema must look like, checked before it is read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from radixlang.errors import InvalidConstraintError

ONE_SCHEMA = ("additionalProperties", "items", "contains", "not", "if", "then", "else",
              "propertyNames", "unevaluatedProperties", "unevaluatedItems", "additionalItems",
              "contentSchema")  # fmt: skip
SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions",
               "dependencies")  # fmt: skip

TYPE_SETS = {
    "null": {"null"}, "boolean": {"boolean"}, "integer": {"integer"}, "string": {"string"},
    "number": {"integer", "fraction"}, "array": {"array"}, "object": {"object"},
}  # fmt: skip

_Shape = tuple[Callable[[Any], bool], str]


def escape(step: str) -> str:
    """One step of a JSON pointer."""
    return step.replace("~", "~0").replace("/", "~1")


def check_shapes(schema: Any, pointer: str) -> None:
    """Look at the keywords of one schema; the schemas inside of it are looked at in their turn.

    Args:
        schema: the schema.
        pointer: JSON pointer to it from the root of the document.

    Raises:
        InvalidConstraintError: with the pointer of the first value that its keyword cannot have.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise InvalidConstraintError(
            f"#{pointer}: a schema is an object or a boolean, not {schema!r:.60}"
        )
    for keyword, value in schema.items():
        fits, words = _SHAPES.get(keyword, _ANY)
        if not fits(value):
            raise InvalidConstraintError(
                f"#{pointer}/{escape(keyword)}: {value!r:.60} is not {words}"
            )


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # false for NaN as well


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_filled(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0


def _is_type(value: Any) -> bool:
    return all(
        _is_text(v) and v in TYPE_SETS for v in (value if isinstance(value, list) else [value])
    )


def _is_map_of_names(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_names, value.values()))


def _is_old_dependencies(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_names(v) for v in value.values() if isinstance(v, list)
    )


def _is_bound(value: Any) -> bool:  # draft 4 has a flag beside the bound
    return isinstance(value, bool) or _is_number(value)


_ANY: _Shape = (lambda _: True, "")
_NUMBER: _Shape = (_is_number, "a number, or too large for one")
_COUNT: _Shape = (_is_count, "a whole number of 0 or more")
_SHAPES: dict[str, _Shape] = {
    **dict.fromkeys(ONE_SCHEMA, (_is_schema, "a schema, which is an object or a boolean")),
    **dict.fromkeys(SCHEMA_LISTS, (_is_filled, "a list of one schema or more")),
    **dict.fromkeys(SCHEMA_MAPS, (lambda v: isinstance(v, dict), "an object of schemas")),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
         "minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("minimum", "maximum"), _NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (_is_bound, _NUMBER[1])),
    "required": (_is_names, "a list of names"),
    "items": (lambda v: _is_schema(v) or isinstance(v, list), "a schema or a list of schemas"),
    "prefixItems": (lambda v: isinstance(v, list), "a list of schemas"),
    "dependencies": (_is_old_dependencies, "an object of schemas or lists of names"),
    "dependentRequired": (_is_map_of_names, "an object of lists of names"),
    "multipleOf": (lambda v: _is_number(v) and v > 0, "a number above 0"),
    "type": (_is_type, "a type of JSON or a list of them"),
    "enum": (lambda v: isinstance(v, list), "a list of values"),
    "uniqueItems": (lambda v: isinstance(v, bool), "a boolean"),
    **dict.fromkeys(
        ("pattern", "format", "$ref", "$dynamicRef", "$recursiveRef", "$anchor",
         "$dynamicAnchor", "$id", "$schema"), (_is_text, "a text")),
}  # fmt: skip
