"""uniqueItems where the items are few enough to list every sequence of them."""

from __future__ import annotations

from itertools import permutations
from math import perm
from typing import TYPE_CHECKING, Any

from radixlang.runtime.schema.reading import Place
from radixlang.runtime.schema.types import equal

if TYPE_CHECKING:
    from radixlang.runtime.schema.rewriting import Rewriter

MAX_SEQUENCES = 400


def unique_sequences(rewriter: Rewriter, place: Place) -> list[Any]:
    """Schemas that allow arrays without equal items only.

    Raises:
        RefusedKeywordError: the items are not few and finite.
    """
    schema = place.schema
    most = schema.get("maxItems")
    if most is not None and most <= 1:
        return []
    prefix = len(schema.get("prefixItems", schema["items"] if _is_list(schema, "items") else ()))
    if prefix <= 1 and schema.get("items", schema.get("additionalItems")) is False:
        return []
    values = _item_values(rewriter, place) if prefix == 0 else None
    if values is None:
        raise rewriter.refuse(place, "uniqueItems", "items that are not a short list of values")
    least, most = int(schema.get("minItems", 0)), min(len(values), int(most or len(values)))
    lengths = range(least, most + 1)
    if sum(perm(len(values), n) for n in lengths) > MAX_SEQUENCES:
        raise rewriter.refuse(
            place, "uniqueItems", f"more than {MAX_SEQUENCES} sequences of {len(values)} values"
        )
    listed = [list(way) for n in lengths for way in permutations(values, n)]
    rewriter.count(place, len(listed))
    others = rewriter._not_arrays(place)
    return [rewriter.any_of([{"enum": listed}, *others] if listed else others)]


def _item_values(rewriter: Rewriter, place: Place) -> list[Any] | None:
    if not isinstance(place.schema.get("items"), dict):
        return None
    values = rewriter.knowledge.values(place.at("items"))
    if values is None:
        return None
    return [v for i, v in enumerate(values) if not any(equal(v, w) for w in values[:i])]


def _is_list(schema: dict[str, Any], keyword: str) -> bool:
    return isinstance(schema.get(keyword), list)
