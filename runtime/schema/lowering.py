"""A JSON schema lowered to the mask engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LoweredSchema:
    """A schema in the engine's terms.

    Args:
        body: the engine's grammar.
        ignored: JSON pointers of the keywords that were left out.
        warnings: remarks for the user.
        check: raises for a finished text that breaks an ignored keyword.
    """

    body: dict[str, Any]
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    check: Callable[[str], None] | None = None


def lower_schema(text: str, *, strict: bool, whitespace: int) -> LoweredSchema:
    """A schema as the engine takes it."""
    schema = json.loads(text)
    options: dict[str, Any] = {"whitespace_flexible": False}
    if whitespace:
        options = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{whitespace}}}"}
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return LoweredSchema({"json_schema": {**schema, "x-guidance": options}})
