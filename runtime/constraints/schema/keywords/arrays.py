"""Items of arrays: their schemas, counts of matching items, uniqueness."""

from __future__ import annotations

from collections.abc import Iterator

from radixlang.json_types import Json, Schema, Subschema
from radixlang.runtime.constraints.schema.keywords.counts import count_keywords
from radixlang.runtime.constraints.schema.keywords.entry import (
    ARRAYS,
    COUNT,
    FLAG,
    PREFIX,
    SCHEMA,
    SCHEMA_OR_SCHEMAS,
    Keyword,
)
from radixlang.runtime.constraints.schema.keywords.sequences import (
    not_arrays,
    says_items,
    unique_sequences,
)
from radixlang.runtime.constraints.schema.keywords.unevaluated import write_unevaluated
from radixlang.runtime.constraints.schema.reading import ALL_TYPES, Place
from radixlang.runtime.constraints.schema.rewriting import Rewriter, any_of
from radixlang.runtime.constraints.schema.types import equal
from radixlang.runtime.constraints.schema.validation import Evaluated, Validator

MAX_CONTAINING = 8  # most items of an array with `contains`


def _schemas(rewriter: Rewriter, place: Place, keyword: str) -> list[Subschema]:
    return [rewriter.schema(place.at(keyword, i)) for i in range(len(place.schema[keyword]))]


# prefixItems, items, additionalItems: before 2020-12 a list of items had prefixItems' meaning


def _write_prefix(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    if not isinstance(place.schema.get("items"), list):
        out["prefixItems"] = _schemas(rewriter, place, "prefixItems")
    return []


def _write_items(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    if isinstance(place.schema["items"], list):
        out["prefixItems"] = _schemas(rewriter, place, "items")
    elif not says_items(rewriter, place):
        out["items"] = rewriter.schema(place.at("items"))
    return []


def _write_additional(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    if isinstance(place.schema.get("items"), list) and not says_items(rewriter, place):
        out["items"] = rewriter.schema(place.at("additionalItems"))
    return []


def _other_prefix(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    for index in range(len(place.schema["prefixItems"])):
        yield from _other_at(rewriter, place.at("prefixItems", index), index)


def _other_at(rewriter: Rewriter, item: Place, index: int) -> Iterator[Subschema]:
    wrong = rewriter.complement(item, ALL_TYPES)
    if wrong:
        prefix = [*[True] * index, any_of(wrong)]
        yield {"type": "array", "prefixItems": prefix, "minItems": index + 1}


def _other_items(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    items = place.schema["items"]
    if isinstance(items, list):
        for index in range(len(items)):
            yield from _other_at(rewriter, place.at("items", index), index)
    elif items is False:
        yield {"type": "array", "minItems": len(place.schema.get("prefixItems", ())) + 1}
    elif items not in (True, {}):
        raise rewriter.refuse(place, "items", "its complement cannot be enforced")


def _fits_prefix(
    validator: Validator, place: Place, keyword: str, value: list[Json], seen: Evaluated
) -> bool:
    num = min(len(value), len(place.schema[keyword]))
    seen.items.update(range(num))
    return all(validator.is_valid(place.at(keyword, i), value[i]) for i in range(num))


def _fits_rest(
    validator: Validator, item: Place, value: list[Json], start: int, seen: Evaluated
) -> bool:  # fmt: skip
    seen.items.update(range(start, len(value)))
    return all(validator.is_valid(item, each) for each in value[start:])


def _test_prefix(validator: Validator, place: Place, value: list[Json], seen: Evaluated) -> bool:
    return _fits_prefix(validator, place, "prefixItems", value, seen)


def _test_items(validator: Validator, place: Place, value: list[Json], seen: Evaluated) -> bool:
    if isinstance(place.schema["items"], list):
        return _fits_prefix(validator, place, "items", value, seen)
    start = len(place.schema.get("prefixItems", ()))
    return _fits_rest(validator, place.at("items"), value, start, seen)


def _test_additional(
    validator: Validator, place: Place, value: list[Json], seen: Evaluated
) -> bool:
    items = place.schema.get("items")
    if not isinstance(items, list):
        return True
    return _fits_rest(validator, place.at("additionalItems"), value, len(items), seen)


# contains; minContains and maxContains have no effect alone


def _write_contains(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    schema, item = place.schema, place.at("contains")
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    if most is None and least == 0:
        return []
    if item.schema in (True, {}):
        return [{"minItems": int(least)} | ({} if most is None else {"maxItems": int(most)})]
    if least == 0 and most == 0:
        return [{"items": any_of(rewriter.complement(item, ALL_TYPES))}]
    limit = int(schema.get("maxItems", MAX_CONTAINING + 1))
    if most is None and least == 1 and limit <= MAX_CONTAINING:
        body = rewriter.schema(item)
        ways: list[Subschema] = [
            {"type": "array", "minItems": i + 1, "prefixItems": [*[True] * i, body]}
            for i in range(limit)
        ]
        return [any_of([*ways, *not_arrays(rewriter, place)])]
    raise rewriter.refuse(place, "contains", "an item that may stand anywhere")


def _without_any(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    if {"minContains", "maxContains"} & place.schema.keys():
        raise rewriter.refuse(place, "contains", "the complement of a count of items")
    yield {"type": "array", "items": any_of(rewriter.complement(place.at("contains"), ALL_TYPES))}


def _test_contains(validator: Validator, place: Place, value: list[Json], seen: Evaluated) -> bool:
    item = place.at("contains")
    found = [i for i, each in enumerate(value) if validator.is_valid(item, each)]
    seen.items.update(found)
    least, most = place.schema.get("minContains", 1), place.schema.get("maxContains")
    return len(found) >= least and (most is None or len(found) <= most)


# uniqueItems, unevaluatedItems


def _write_unique(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    if not place.schema["uniqueItems"] or "array" not in rewriter.knowledge.types(place):
        return []
    return unique_sequences(rewriter, place)


def _test_unique(validator: Validator, place: Place, value: list[Json], seen: Evaluated) -> bool:
    return not place.schema["uniqueItems"] or not any(
        equal(a, b) for i, a in enumerate(value) for b in value[:i]
    )


def _write_unevaluated(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    return write_unevaluated(rewriter, place, "unevaluatedItems")


def _test_unevaluated(
    validator: Validator, place: Place, value: list[Json], seen: Evaluated
) -> bool:
    rest = [i for i in range(len(value)) if i not in seen.items]
    seen.items.update(rest)
    item = place.at("unevaluatedItems")
    return all(validator.is_valid(item, value[i]) for i in rest)


KEYWORDS = {
    **count_keywords("Items", "array"),
    "prefixItems": Keyword(PREFIX, ARRAYS, _write_prefix, None, _other_prefix, _test_prefix),
    "items": Keyword(SCHEMA_OR_SCHEMAS, ARRAYS, _write_items, None, _other_items, _test_items),
    "additionalItems": Keyword(SCHEMA, ARRAYS, _write_additional, test=_test_additional),
}
LATE_KEYWORDS = {
    "contains": Keyword(SCHEMA, ARRAYS, _write_contains, None, _without_any, _test_contains),
    "minContains": Keyword(COUNT),
    "maxContains": Keyword(COUNT),
    "uniqueItems": Keyword(FLAG, ARRAYS, _write_unique, test=_test_unique),
    "unevaluatedItems": Keyword(
        SCHEMA, ARRAYS, _write_unevaluated, test=_test_unevaluated, is_late=True
    ),
}
