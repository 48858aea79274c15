"""Typed values: the constraint that a type puts on a text, and the parser from text to value.

Scalars are written bare (`42`, `true`, a Literal's text, `2024-02-29`); types with parts or bounds
are written as JSON. A text that is not a value of the type raises a ValueParseError with the text.
Parsing may run the user's validators, so it never runs on the engine's thread.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_origin

from radixlang.constraints.json_values import (
    BOOLS,
    bare_options,
    from_json,
    is_enum,
    read_text,
    type_name,
)
from radixlang.constraints.json_writing import to_json
from radixlang.constraints.text_patterns import FLOAT_PATTERN, INT_PATTERN
from radixlang.constraints.types.pydantic_types import is_adapted
from radixlang.constraints.types.standard_types import standard_type
from radixlang.constraints.types.type_members import is_alias, members_of, plain
from radixlang.constraints.types.type_schemas import LISTS, MAPPINGS, SETS
from radixlang.errors import ParameterError, ValueParseError
from radixlang.json_types import TypeForm

if TYPE_CHECKING:
    from radixlang.constraints.specs import Constraint

__all__ = [
    "FLOAT_PATTERN",
    "INT_PATTERN",
    "Output",
    "from_json",
    "output_for",
    "to_json",
    "type_name",
]


@dataclass(frozen=True, slots=True)
class Output:
    """A type as an output: `constraint` bounds the text (None: anything), `parse` reads it.

    A `Tools` constraint is a kind too; its values are ToolCalls.
    """

    kind: TypeForm
    constraint: Constraint | None = field(default=None, compare=False)

    def parse(self, text: str) -> object:
        """The value of a text.

        Raises:
            ValueParseError: the text is not a value of this type; `partial` is the text.
        """
        return read_text(self.kind, text)

    def convert(self, value: object) -> object:
        """A value as this type: text is parsed, anything else goes through its JSON form."""
        if isinstance(value, str):
            return value if self.kind is str else self.parse(value)
        if isinstance(self.kind, type) and type(value) is self.kind:
            return value
        try:
            return from_json(self.kind, to_json(value))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueParseError(f"{value!r} is not a value of {type_name(self.kind)}") from error


def output_for(kind: TypeForm) -> Output:
    """The output that a type asks for.

    Raises:
        ParameterError: it is not a type that can be generated.
        InvalidConstraintError: a part of it cannot be enforced while text is generated.
    """
    try:
        return _cached_output(kind)
    except TypeError:
        return _make_output(kind)  # a type that cannot be hashed


@functools.lru_cache(maxsize=512, typed=True)
def _cached_output(kind: TypeForm) -> Output:
    return _make_output(kind)


def _make_output(kind: TypeForm) -> Output:
    from radixlang.constraints.specs import Choices, JsonSchema, Regex

    kind = plain(kind)
    if kind is str:
        return Output(kind)
    pattern = _bare_pattern(kind)
    if pattern is not None:
        return Output(kind, Regex(pattern))
    standard = standard_type(kind)
    if standard is not None:
        return Output(kind)
    if kind is bool:
        return Output(kind, Choices(tuple(BOOLS)))
    options = bare_options(kind)
    if options is not None:
        return Output(kind, Choices(tuple(options)))
    if not _is_structured(kind):
        raise ParameterError(
            f"cannot generate a value of {kind!r}; use int, float, bool, str, Literal, an Enum, "
            "Union, list, tuple, set, dict, date, datetime, Decimal, UUID, a dataclass, a "
            "TypedDict, a pydantic model or a function"
        )
    return Output(kind, JsonSchema.of(kind))


def _bare_pattern(kind: TypeForm) -> str | None:
    """The pattern of a type that is written without quotes."""
    if kind is int:
        return INT_PATTERN
    if kind is float:
        return FLOAT_PATTERN
    standard = standard_type(kind)
    return standard.pattern if standard is not None else None


def _is_structured(kind: TypeForm) -> bool:
    if get_origin(kind) is not None or kind in (*LISTS, *SETS, *MAPPINGS, tuple, Any, type(None)):
        return True
    return is_alias(kind) or is_adapted(kind) or is_enum(kind) or members_of(kind) is not None
