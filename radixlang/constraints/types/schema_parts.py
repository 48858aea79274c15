"""Parts of JSON schemas: closed objects, objects keyed by a type, inlined definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from radixlang.constraints.text_patterns import (
    FLOAT_PATTERN,
    INT_PATTERN,
    anchored,
    one_of,
)
from radixlang.errors import InvalidConstraintError
from radixlang.json_types import Schema

_REF = "#/$defs/"
_VALUES = frozenset(["const", "enum", "default", "examples"])  # no schemas below these
_MAPS = frozenset(["properties", "patternProperties", "$defs", "dependentSchemas"])


def closed_object(properties: Schema, required: list[str]) -> Schema:
    """An object with these members and no other."""
    return {"type": "object", "properties": properties, "required": required,
            "additionalProperties": False}  # fmt: skip


def keyed_object(key: Schema, value: Schema, what: str) -> Schema:
    """An object whose names are values of a type, written as text.

    Args:
        key: the schema of the type of the keys.
        value: the schema of each value.
        what: the type, for the error.

    Raises:
        InvalidConstraintError: keys of that type cannot be written as text and read back.
    """
    told = {name: part for name, part in key.items() if name not in ("title", "description")}
    if told in ({}, {"type": "string"}):
        return {"type": "object", "additionalProperties": value}
    pattern = _key_pattern(told)
    if pattern is not None:
        return {"type": "object", "patternProperties": {pattern: value},
                "additionalProperties": False}  # fmt: skip
    if told.get("type") == "string":
        return {"type": "object", "propertyNames": told, "additionalProperties": value}
    raise InvalidConstraintError(
        f"the keys of {what} cannot be written as JSON's names; use str, int, float, bool, "
        "Literal, an Enum, date, datetime, Decimal or UUID without bounds, or a list of pairs"
    )


def _key_pattern(key: Schema) -> str | None:
    """The pattern of all texts of a key; None if another keyword bounds it."""
    if key.keys() == {"type", "pattern"} and key["type"] == "string":
        return str(key["pattern"])
    if key == {"type": "integer"}:
        return anchored(INT_PATTERN)
    if key == {"type": "number"}:
        return anchored(FLOAT_PATTERN)
    if key == {"type": "boolean"}:
        return anchored("true|false")
    options = [key["const"]] if "const" in key else key.get("enum")
    if options and all(isinstance(option, (str, int, float)) for option in options):
        texts = [key_text(option) for option in options]
        return anchored(one_of(texts)) if len(set(texts)) == len(texts) else None
    return None


def key_text(value: object) -> str:
    """A JSON scalar as the name of a member."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def merged(schema: Schema, definitions: Schema) -> Schema:
    """A schema whose `$defs` are moved to `definitions`, renamed if a name is taken."""
    own = schema.get("$defs", {})
    names = {}
    for name, part in own.items():
        free, number = name, 2
        while free in definitions and definitions[free] != part:
            free, number = f"{name}_{number}", number + 1
        names[name] = free
    for name, part in own.items():
        definitions[names[name]] = _renamed(part, names)
    return _renamed({key: schema[key] for key in schema if key != "$defs"}, names)


def _renamed(node: Schema, names: dict[str, str]) -> Schema:
    def rename(part: Schema) -> Schema:
        target = _target(part)
        return {**part, "$ref": _REF + names[target]} if target in names else part

    return mapped_schema(node, rename)


def inlined(schema: Schema, definitions: Schema) -> Schema:
    """A schema with `$defs` for parts that are used twice or recursive; the others are inlined."""
    counts: Counter[str] = Counter()

    def count(part: Schema) -> Schema:
        target = _target(part)
        counts.update([] if target is None else [target])
        return part

    def place(part: Schema) -> Schema:
        target = _target(part)
        if target is None or counts[target] != 1 or target not in definitions:
            return part
        here = {key: part[key] for key in part if key != "$ref"}
        return place({**definitions[target], **here})

    for part in (schema, *definitions.values()):
        mapped_schema(part, count)
    found = mapped_schema(schema, place)
    kept = {
        name: mapped_schema(part, place) for name, part in definitions.items() if counts[name] > 1
    }
    return {**found, "$defs": kept} if kept else found


def _target(node: Schema) -> str | None:
    """The name in `$defs` to which a `$ref` points."""
    ref = node.get("$ref")
    return ref[len(_REF) :] if isinstance(ref, str) and ref.startswith(_REF) else None


def mapped_schema(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """A schema with `change` applied to it and every schema in it, from the outside in."""
    return {key: _mapped_keyword(key, part, change) for key, part in change(schema).items()}


def _mapped_keyword(key: str, value: object, change: Callable[[Schema], Schema]) -> object:
    if key in _VALUES:
        return value
    if key in _MAPS and isinstance(value, dict):
        return {name: _mapped(part, change) for name, part in value.items()}
    return _mapped(value, change)


def _mapped(node: object, change: Callable[[Schema], Schema]) -> object:
    if isinstance(node, list):
        return [_mapped(part, change) for part in node]
    return mapped_schema(node, change) if isinstance(node, dict) else node
