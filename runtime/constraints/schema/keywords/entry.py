"""The entries of the table of keywords, and the forms of keywords' values."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TypeGuard

from radixlang.json_types import Json
from radixlang.runtime.constraints.schema.reading import Form
from radixlang.runtime.constraints.schema.rewriting import Complement, KeywordWriter
from radixlang.runtime.constraints.schema.types import TYPE_SETS
from radixlang.runtime.constraints.schema.validation import Test


@dataclass(frozen=True, slots=True)
class Keyword:
    """Everything about one keyword.

    Args:
        form: the form of its value.
        refuses: the types of values that it can refuse; none for a keyword without effect alone.
        write: adds to the schema for the engine, and returns further schemas that must hold.
        when_skipped: what is written if strict=False leaves it out.
        complement: the values that it refuses, as schemas; None if masks cannot enforce them.
        test: whether a finished value satisfies it.
        is_late: the test needs what other keywords evaluated.
    """

    form: Form
    refuses: frozenset[str] = frozenset()
    write: KeywordWriter | None = None
    when_skipped: KeywordWriter | None = None
    complement: Complement | None = None
    test: Test | None = None
    is_late: bool = False


NUMBERS = frozenset(["integer", "fraction"])
STRINGS, ARRAYS, OBJECTS = frozenset(["string"]), frozenset(["array"]), frozenset(["object"])


def _is_number(value: Json) -> TypeGuard[float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # false for NaN as well


def _is_count(value: Json) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _is_names(value: Json) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_schema(value: Json) -> bool:
    return isinstance(value, dict | bool)


def _is_type(value: Json) -> bool:
    return all(
        _is_text(v) and v in TYPE_SETS for v in (value if isinstance(value, list) else [value])
    )


def _is_map_of_names(value: Json) -> bool:
    return isinstance(value, dict) and all(map(_is_names, value.values()))


def _is_dependencies(value: Json) -> bool:
    return isinstance(value, dict) and all(
        _is_names(v) for v in value.values() if isinstance(v, list)
    )


def _is_bound(value: Json) -> bool:  # draft 4 has a flag there
    return isinstance(value, bool) or _is_number(value)


ANY = Form(lambda _: True, "")
NUMBER = Form(_is_number, "a number, or too large for one")
BOUND = Form(_is_bound, NUMBER.words)
DIVISOR = Form(lambda v: _is_number(v) and v > 0, "a number above 0")
COUNT = Form(_is_count, "a whole number of 0 or more")
TEXT = Form(_is_text, "a text")
FLAG = Form(lambda v: isinstance(v, bool), "a boolean")
TYPE = Form(_is_type, "a type of JSON or a list of them")
VALUES = Form(lambda v: isinstance(v, list), "a list of values")
NAMES = Form(_is_names, "a list of names")
NAMES_BY_NAME = Form(_is_map_of_names, "an object of lists of names")
SCHEMA = Form(_is_schema, "a schema, which is an object or a boolean", ("itself",))
SCHEMAS = Form(
    lambda v: isinstance(v, list) and len(v) > 0, "a list of one schema or more", ("items",)
)
PREFIX = Form(lambda v: isinstance(v, list), "a list of schemas", ("items",))
SCHEMA_OR_SCHEMAS = Form(
    lambda v: _is_schema(v) or isinstance(v, list), "a schema or a list of schemas",
    ("itself", "items"),
)  # fmt: skip
SCHEMAS_BY_NAME = Form(lambda v: isinstance(v, dict), "an object of schemas", ("names",))
DEPENDENCIES = Form(
    _is_dependencies, "an object of schemas or lists of names", ("names", "lists of names")
)
