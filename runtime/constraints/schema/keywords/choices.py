"""`allOf`, `anyOf`, `oneOf`, `not`, and `if` with its branches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from radixlang.json_types import Json, Schema, Subschema
from radixlang.runtime.constraints.schema.keywords.entry import SCHEMA, SCHEMAS, Keyword
from radixlang.runtime.constraints.schema.reading import ALL_TYPES, Place
from radixlang.runtime.constraints.schema.rewriting import Rewriter, all_of, any_of, without
from radixlang.runtime.constraints.schema.validation import Evaluated, Validator


def _options(place: Place, keyword: str) -> list[Place]:
    return [place.at(keyword, index) for index in range(len(place.schema[keyword]))]


def _write_all_of(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    return [rewriter.schema(option) for option in _options(place, "allOf")]


def _not_all(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    for option in _options(place, "allOf"):
        yield from rewriter.complement(option, types)


def _test_all_of(validator: Validator, place: Place, value: Json, seen: Evaluated) -> bool:
    return all(validator.is_valid(option, value, seen) for option in _options(place, "allOf"))


def _write_any_of(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    return [{"anyOf": [rewriter.schema(option) for option in _options(place, "anyOf")]}]


def _none(
    rewriter: Rewriter, place: Place, keyword: str, types: frozenset[str]
) -> Iterator[Subschema]:  # fmt: skip
    complements = [rewriter.complement(option, types) for option in _options(place, keyword)]
    if all(complements):
        yield all_of([any_of(complement) for complement in complements])


def _none_of_any(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    yield from _none(rewriter, place, "anyOf", types)


def _num_valid(
    validator: Validator, place: Place, keyword: str, value: Json, seen: Evaluated
) -> int:  # fmt: skip
    return sum([validator.is_valid(option, value, seen) for option in _options(place, keyword)])


def _test_any_of(validator: Validator, place: Place, value: Json, seen: Evaluated) -> bool:
    return _num_valid(validator, place, "anyOf", value, seen) > 0


# oneOf


def _write_one_of(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    """Each option without the others that may overlap with it."""
    places = _options(place, "oneOf")
    options = [rewriter.schema(option) for option in places]
    around = without(place, "oneOf")
    with rewriter.blaming(place, "oneOf"):
        options = [
            all_of([option, *_others(rewriter, around, places, index)])
            for index, option in enumerate(options)
        ]
    return [any_of([option for option in options if option is not False])]


def _write_any_one(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    options = [rewriter.schema(option) for option in _options(place, "oneOf")]
    return [any_of([option for option in options if option is not False])]


def _others(
    rewriter: Rewriter, around: Place, places: list[Place], index: int
) -> list[Subschema]:  # fmt: skip
    """The complements of all options that may overlap with one."""
    mine, known = places[index], rewriter.knowledge
    types = known.types(mine) & known.types(around)
    rivals = [p for i, p in enumerate(places) if i != index and not known.disjoint(mine, p)]
    return [any_of(rewriter.complement(rival, types)) for rival in rivals]


def _not_one(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    yield from _none(rewriter, place, "oneOf", types)
    for a, b in combinations(_options(place, "oneOf"), 2):
        if not rewriter.knowledge.disjoint(a, b):
            yield all_of([rewriter.schema(a), rewriter.schema(b)])


def _test_one_of(validator: Validator, place: Place, value: Json, seen: Evaluated) -> bool:
    return _num_valid(validator, place, "oneOf", value, seen) == 1


# not, if


def _write_not(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    types = rewriter.knowledge.types(without(place, "not"))
    with rewriter.blaming(place, "not"):
        return [any_of(rewriter.complement(place.at("not"), types))]


def _not_not(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    inner = rewriter.schema(place.at("not"))
    if inner is not False:
        yield inner


def _write_if(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    """if A then B else C is (A and B) or (not A and C)."""
    if not {"then", "else"} & place.schema.keys():
        return []
    test = place.at("if")
    with rewriter.blaming(place, "if"):
        fails = [any_of(rewriter.complement(test, rewriter.knowledge.types(place)))]
    holds = [rewriter.schema(test)]
    for branch, ways in (("then", holds), ("else", fails)):
        if rewriter.wants(place, branch):
            ways.append(rewriter.schema(place.at(branch)))
    both = [all_of(holds), all_of(fails)]
    return [any_of([way for way in both if way is not False])]


def _not_if(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    test = place.at("if")
    if "then" in place.schema:
        wrong = rewriter.complement(place.at("then"), types)
        if wrong:
            yield all_of([rewriter.schema(test), any_of(wrong)])
    if "else" in place.schema:
        wrong = rewriter.complement(place.at("else"), types)
        fails = rewriter.complement(test, types)
        if wrong and fails:
            yield all_of([any_of(fails), any_of(wrong)])


def _test_if(validator: Validator, place: Place, value: Json, seen: Evaluated) -> bool:
    branch = "then" if validator.is_valid(place.at("if"), value, seen) else "else"
    return branch not in place.schema or validator.is_valid(place.at(branch), value, seen)


KEYWORDS = {
    "allOf": Keyword(SCHEMAS, ALL_TYPES, _write_all_of, None, _not_all, _test_all_of),
    "anyOf": Keyword(SCHEMAS, ALL_TYPES, _write_any_of, None, _none_of_any, _test_any_of),
    "oneOf": Keyword(SCHEMAS, ALL_TYPES, _write_one_of, _write_any_one, _not_one, _test_one_of),
    "not": Keyword(
        SCHEMA, ALL_TYPES, _write_not, None, _not_not,
        lambda v, place, value, seen: not v.is_valid(place.at("not"), value),
    ),
    "if": Keyword(SCHEMA, ALL_TYPES, _write_if, None, _not_if, _test_if),
    "then": Keyword(SCHEMA),
    "else": Keyword(SCHEMA),
}  # fmt: skip
