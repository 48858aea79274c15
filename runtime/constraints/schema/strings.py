"""The patterns for strings in a constraint's schemas, wherever they are."""

from __future__ import annotations

import json
from collections.abc import Iterator

from radixlang.constraints.specs import Capture, Constraint, JsonSchema, Sequence, Tools
from radixlang.errors import ConstraintError
from radixlang.json_types import Subschema
from radixlang.runtime.constraints.regex.pattern import ANY_CHAR, Pattern, both, repeat
from radixlang.runtime.constraints.schema.patterns import string_pattern

MAX_PATTERNS = 20


def string_patterns(spec: Constraint | Capture | str) -> list[Pattern]:
    """Each pattern once, combined with its bounds on length; patterns of names too."""
    found: dict[Pattern, None] = {}
    for schema in _schemas(spec):
        for pattern in _patterns(schema):
            if len(found) < MAX_PATTERNS:
                found[pattern] = None
    return list(found)


def _schemas(spec: Constraint | Capture | str) -> Iterator[Subschema]:
    match spec:
        case JsonSchema():
            yield json.loads(spec.schema)
        case Tools():
            yield from (json.loads(tool.parameters) for tool in spec.tools)
        case Sequence():
            for part in spec.parts:
                yield from _schemas(part)
        case Capture():
            yield from _schemas(spec.constraint)


def _patterns(schema: Subschema) -> Iterator[Pattern]:
    todo: list[object] = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += part
        elif isinstance(part, dict):
            todo += part.values()
            names = part.get("patternProperties")
            lengths = part.get("minLength", 0), part.get("maxLength")
            yield from _pattern(part.get("pattern"), *lengths)
            for name in names if isinstance(names, dict) else ():
                yield from _pattern(name, 0, None)


def _pattern(text: object, least: object, most: object) -> Iterator[Pattern]:
    if not isinstance(text, str):
        return
    try:
        found = string_pattern(text)
    except ConstraintError:
        return
    bounds = least if isinstance(least, int) else 0, most if isinstance(most, int) else None
    yield found if bounds == (0, None) else both(found, repeat(ANY_CHAR, *bounds))
