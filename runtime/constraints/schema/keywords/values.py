"""`type`, `enum` and `const`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from radixlang.json_types import Schema, Subschema
from radixlang.runtime.constraints.regex.pattern import (
    ANY_TEXT,
    EMPTY,
    LiteralText,
    Pattern,
    alt,
    cat,
    chars,
    negate,
)
from radixlang.runtime.constraints.schema.keywords.entry import ANY, NUMBERS, TYPE, VALUES, Keyword
from radixlang.runtime.constraints.schema.patterns import written
from radixlang.runtime.constraints.schema.reading import ALL_TYPES, Place
from radixlang.runtime.constraints.schema.rewriting import Rewriter
from radixlang.runtime.constraints.schema.types import (
    declared_types,
    equal,
    finite_values,
    type_of,
)

MAX_ENUM_CHARS = 1_000_000
MAX_INTEGER = 10**18 - 1  # the engine's ranges have less than 64 bits


def _write_type(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    out["type"] = place.schema["type"]
    if declared_types(place) & NUMBERS == {"integer"}:
        _bound_digits(out)
    return []


def _bound_digits(out: Schema) -> None:
    """Bound integers to eighteen digits: a model might write digits without end."""
    values = [out[k] for k in out if k.startswith(("minimum", "maximum", "exclusive"))]
    if "const" in out or "enum" in out or any(abs(value) > MAX_INTEGER for value in values):
        return
    if not {"minimum", "exclusiveMinimum"} & out.keys():
        out["minimum"] = -MAX_INTEGER
    if not {"maximum", "exclusiveMaximum"} & out.keys():
        out["maximum"] = MAX_INTEGER


def _other_types(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    yield from rewriter.typed(place, "type", types - declared_types(place))


def _write_const(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    out["const"] = place.schema["const"]
    return []


def _write_enum(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    out["enum"] = place.schema["enum"]
    if len(str(out["enum"])) > MAX_ENUM_CHARS:
        raise rewriter.refuse(place, "enum", f"more than {MAX_ENUM_CHARS:,} characters of values")
    return []


def _other_values(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    values = finite_values(place.schema) or []
    keyword = "const" if "const" in place.schema else "enum"
    listed = frozenset(map(type_of, values))
    if listed & NUMBERS:
        listed |= NUMBERS
    yield from rewriter.typed(place, keyword, types - listed)
    strings = [v for v in values if isinstance(v, str)]
    if strings and "string" in types:
        yield {"type": "string", "pattern": written(other_strings(strings))}
    numbers = sorted({v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)})
    if numbers and types & NUMBERS:
        yield from _between(numbers, "number" if "fraction" in types else "integer")
    for kind, all_values in (("boolean", [False, True]), ("null", [None])):
        rest = [v for v in all_values if not any(equal(v, w) for w in values)]
        if kind in listed & types and rest:
            yield {"enum": rest}
    for kind, count in (("array", "minItems"), ("object", "minProperties")):
        same = [v for v in values if type_of(v) == kind]
        if not same or kind not in types:
            continue
        if any(same):
            raise rewriter.refuse(place, keyword, f"all {kind}s but the listed ones")
        yield {"type": kind, count: 1}


def _between(numbers: list[float], kind: str) -> Iterator[Subschema]:
    """All numbers except the sorted ones."""
    yield {"type": kind, "exclusiveMaximum": numbers[0]}
    for low, high in pairwise(numbers):
        if kind == "number" or high - low > 1:
            yield {"type": kind, "exclusiveMinimum": low, "exclusiveMaximum": high}
    yield {"type": kind, "exclusiveMinimum": numbers[-1]}


_Trie: TypeAlias = "dict[str, _Trie]"  # by the next letter; an empty one ends a string


def other_strings(strings: list[str]) -> Pattern:
    """Every string except the given ones, through their trie."""
    trie: _Trie = {}
    for text in strings:
        node = trie
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return _other(trie)


def _other(node: _Trie) -> Pattern:
    letters = [char for char in node if char]
    others = negate(chars((ord(char), ord(char)) for char in letters))
    ways: list[Pattern] = [] if "" in node else [EMPTY]
    ways.append(cat(others, ANY_TEXT))
    ways.extend(cat(LiteralText(char), _other(node[char])) for char in letters)
    return alt(*ways)


KEYWORDS = {
    "const": Keyword(
        ANY, ALL_TYPES, _write_const, None, _other_values,
        lambda v, place, value, seen: equal(value, place.schema["const"]),
    ),
    "enum": Keyword(
        VALUES, ALL_TYPES, _write_enum, None, _other_values,
        lambda v, place, value, seen: any(equal(value, w) for w in place.schema["enum"]),
    ),
}  # fmt: skip
TYPE_KEYWORD = Keyword(  # after the bounds of numbers, which it completes
    TYPE, ALL_TYPES, _write_type, None, _other_types,
    lambda v, place, value, seen: type_of(value) in declared_types(place),
)  # fmt: skip
