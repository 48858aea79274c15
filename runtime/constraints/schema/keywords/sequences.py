"""uniqueItems, if the items are few enough to list every order of them."""

from __future__ import annotations

from itertools import permutations
from math import perm

from radixlang.json_types import Json, Schema, Subschema
from radixlang.runtime.constraints.schema.reading import Place
from radixlang.runtime.constraints.schema.rewriting import Rewriter, any_of
from radixlang.runtime.constraints.schema.types import (
    MAX_LOOK,
    declared_types,
    equal,
    type_of,
)

MAX_SEQUENCES = 400


def unique_sequences(rewriter: Rewriter, place: Place) -> list[Subschema]:
    """Schemas that allow only arrays without equal items.

    Each is a longest sequence, which also covers its beginnings: an array may end before all items
    of `prefixItems`.

    Raises:
        RefusedKeywordError: the items are not few and finite.
    """
    schema = place.schema
    limit = schema.get("maxItems")
    if limit is not None and limit <= 1:
        return []
    prefix = len(_prefix(schema))
    if prefix <= 1 and schema.get("items", schema.get("additionalItems")) is False:
        return []
    values = _listed(rewriter, place)[0] if prefix == 0 else None
    if values is None:
        raise rewriter.refuse(place, "uniqueItems", "items that are not a short list of values")
    most = len(values) if limit is None else min(len(values), int(limit))
    if perm(len(values), most) > MAX_SEQUENCES:
        raise rewriter.refuse(
            place, "uniqueItems", f"more than {MAX_SEQUENCES} orders of {len(values)} values"
        )
    ways = [_sequence(way) for way in permutations(values, most)]
    rewriter.count(place, len(ways))
    is_possible = schema.get("minItems", 0) <= most
    return [any_of([*(ways if is_possible else ()), *not_arrays(rewriter, place)])]


def says_items(rewriter: Rewriter, place: Place) -> bool:
    """Whether the sequences make `items` redundant; with both the engine is slow."""
    is_unique = rewriter.wants(place, "uniqueItems") and place.schema["uniqueItems"]
    if not is_unique or _prefix(place.schema) or place.schema.get("maxItems", 2) <= 1:
        return False
    return _listed(rewriter, place)[1]


def _prefix(schema: Schema) -> list[Subschema]:
    old: list[Subschema] = schema["items"] if isinstance(schema.get("items"), list) else []
    prefix: list[Subschema] = schema.get("prefixItems", old)
    return prefix


def _sequence(values: tuple[Json, ...]) -> Schema:
    return {"type": "array", "prefixItems": [{"const": v} for v in values], "items": False}


def _listed(rewriter: Rewriter, place: Place) -> tuple[list[Json] | None, bool]:
    """The values that items may have, each once, and whether nothing else restricts items."""
    if not isinstance(place.schema.get("items"), dict):
        return None, False
    items = place.at("items")
    values = rewriter.knowledge.values(items)
    if values is None or len(values) > MAX_SEQUENCES:
        return None, False
    is_all = _only_lists(rewriter, items)
    if is_all:
        values = [v for v in values if _is_listed(rewriter, items, v)]
    return [v for i, v in enumerate(values) if not any(equal(v, w) for w in values[:i])], is_all


def _only_lists(rewriter: Rewriter, place: Place, look: int = MAX_LOOK) -> bool:
    """Whether a schema has only types, values, and references or choices of such schemas."""
    place = rewriter.knowledge.meant(place)
    asserted = rewriter.rules.refuses.keys() & place.schema
    if look == 0 or not asserted <= {"type", "enum", "const", "$ref"}:
        return False
    target = rewriter.knowledge.follow(place)
    return target is None or _only_lists(rewriter, target, look - 1)


def _is_listed(rewriter: Rewriter, place: Place, value: Json) -> bool:
    """Whether a schema of which `_only_lists` is true allows a value."""
    place = rewriter.knowledge.meant(place)
    schema = place.schema
    lists = [[schema["const"]]] if "const" in schema else []
    lists += [schema["enum"]] if "enum" in schema else []
    if type_of(value) not in declared_types(place):
        return False
    if not all(any(equal(value, other) for other in listed) for listed in lists):
        return False
    target = rewriter.knowledge.follow(place)
    return target is None or _is_listed(rewriter, target, value)


def not_arrays(rewriter: Rewriter, place: Place) -> list[Subschema]:
    """The values other than arrays that a schema allows, as far as they are known."""
    others = sorted(rewriter.knowledge.types(place) - {"array", "fraction", "integer"})
    numbers = rewriter.knowledge.types(place) & {"fraction", "integer"}
    names = [*others, *(["number"] if "fraction" in numbers else sorted(numbers))]
    return [{"type": names}] if names else []
