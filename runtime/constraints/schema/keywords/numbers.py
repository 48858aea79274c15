"""Bounds of numbers and `multipleOf`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction

from radixlang.json_types import Schema, Subschema
from radixlang.runtime.constraints.schema.keywords.entry import (
    BOUND,
    DIVISOR,
    NUMBER,
    NUMBERS,
    Keyword,
)
from radixlang.runtime.constraints.schema.reading import Place
from radixlang.runtime.constraints.schema.rewriting import Complement, KeywordWriter, Rewriter
from radixlang.runtime.constraints.schema.validation import Evaluated, Test, Validator

MAX_DIVISOR = 100_000

_EXCLUSIVE = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
_OPPOSITE = {
    "minimum": "exclusiveMaximum", "exclusiveMinimum": "maximum",
    "maximum": "exclusiveMinimum", "exclusiveMaximum": "minimum",
}  # fmt: skip


def _meaning(place: Place, keyword: str) -> str | None:
    """The keyword of a bound in 2020-12; draft 4 writes an exclusive bound as a flag."""
    if isinstance(place.schema[keyword], bool):
        return None
    exclusive = _EXCLUSIVE.get(keyword, "")
    return exclusive if place.schema.get(exclusive) is True else keyword


def _write_bound(keyword: str) -> KeywordWriter:
    def write(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
        meaning = _meaning(place, keyword)
        if meaning is not None:
            out[meaning] = place.schema[keyword]
        return []

    return write


def _beyond(keyword: str) -> Complement:
    def complement(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
        meaning = _meaning(place, keyword)
        if meaning is not None:
            kind = "number" if "fraction" in types else "integer"
            yield {"type": kind, _OPPOSITE[meaning]: place.schema[keyword]}

    return complement


_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}


def _is_within(keyword: str) -> Test:
    def test(validator: Validator, place: Place, value: float, seen: Evaluated) -> bool:
        meaning = _meaning(place, keyword)
        return meaning is None or _HOLDS[meaning](value, place.schema[keyword])

    return test


def _write_divisor(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    """Bound the states that the engine makes, one for each remainder (fractions are scaled)."""
    out["multipleOf"] = place.schema["multipleOf"]
    digits = Decimal(str(out["multipleOf"])).normalize().as_tuple().digits
    if int("".join(map(str, digits))) > MAX_DIVISOR:
        raise rewriter.refuse(place, "multipleOf", f"more than {MAX_DIVISOR:,} remainders")
    return []


def _is_multiple(validator: Validator, place: Place, value: float, seen: Evaluated) -> bool:
    quotient = Fraction(str(value)) / Fraction(str(place.schema["multipleOf"]))
    return quotient.denominator == 1  # as they are written


def _bound(keyword: str) -> Keyword:
    form = NUMBER if keyword in _EXCLUSIVE else BOUND
    return Keyword(
        form, NUMBERS, _write_bound(keyword), None, _beyond(keyword), _is_within(keyword)
    )


KEYWORDS = {
    "multipleOf": Keyword(DIVISOR, NUMBERS, _write_divisor, test=_is_multiple),
    **{keyword: _bound(keyword) for keyword in _OPPOSITE},
}
