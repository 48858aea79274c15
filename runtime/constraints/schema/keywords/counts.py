"""Counts of characters, items and properties."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from radixlang.json_types import Schema, Subschema
from radixlang.runtime.constraints.schema.keywords.entry import COUNT, Keyword
from radixlang.runtime.constraints.schema.reading import Place
from radixlang.runtime.constraints.schema.rewriting import Rewriter
from radixlang.runtime.constraints.schema.validation import Evaluated, Validator


def count_keywords(what: str, kind: str) -> dict[str, Keyword]:
    """The two keywords that bound the number of parts of a value.

    Args:
        what: the end of their names.
        kind: the type.
    """
    least, most = f"min{what}", f"max{what}"

    def write_least(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
        out[least] = int(place.schema[least])
        return []

    def write_most(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
        out[most] = int(place.schema[most])
        return []

    def fewer(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
        if place.schema[least] > 0:
            yield {"type": kind, most: int(place.schema[least]) - 1}

    def more(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
        yield {"type": kind, least: int(place.schema[most]) + 1}

    def has_least(validator: Validator, place: Place, value: Sized, seen: Evaluated) -> bool:
        return len(value) >= int(place.schema[least])

    def has_most(validator: Validator, place: Place, value: Sized, seen: Evaluated) -> bool:
        return len(value) <= int(place.schema[most])

    kinds = frozenset([kind])
    return {
        least: Keyword(COUNT, kinds, write_least, None, fewer, has_least),
        most: Keyword(COUNT, kinds, write_most, None, more, has_most),
    }
