"""JSON data, JSON schemas and Python's type expressions, as types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

# Read through Sequence and Mapping, so that a list[str] is JSON too; written as lists and dicts.
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
JsonObject: TypeAlias = dict[str, Json]
JsonBody: TypeAlias = dict[str, Any]  # of a request or reply; each field has its own type

# A JSON schema that is an object. What a keyword holds follows from its name, and is checked when
# the schema is read (runtime/constraints/schema/keywords); a type of it would be checked again.
Schema: TypeAlias = dict[str, Any]
Subschema: TypeAlias = Schema | bool

# A type as a program writes it: `int`, `list[int]`, `Literal["a"]`, a union, an alias, a function.
# No type of the standard library covers all of them, and `type` covers the fewest.
TypeForm: TypeAlias = object
