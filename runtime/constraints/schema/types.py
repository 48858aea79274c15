"""Facts about schemas without enumerating values: types, listed values, disjointness."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from radixlang.errors import ConstraintError
from radixlang.json_types import Json, Schema
from radixlang.runtime.constraints.schema.reading import ALL_TYPES, Document, Place

TYPE_SETS = {
    "null": {"null"}, "boolean": {"boolean"}, "integer": {"integer"}, "string": {"string"},
    "number": {"integer", "fraction"}, "array": {"array"}, "object": {"object"},
}  # fmt: skip
Pick: TypeAlias = Callable[[Iterable[tuple[float, bool]]], tuple[float, bool]]  # min or max
MAX_LOOK = 12  # most references and branches followed for one fact


def declared_types(place: Place) -> frozenset[str]:
    """The types that the `type` keyword allows."""
    value = place.schema.get("type")
    if value is None:
        return ALL_TYPES
    return frozenset().union(
        *(TYPE_SETS[n] for n in (value if isinstance(value, list) else [value]))
    )


def type_names(types: Iterable[str]) -> list[str] | None:
    """Types as a `type` keyword; None if it would need numbers without integers."""
    names = set(types)
    if "fraction" in names:
        if "integer" not in names:
            return None
        names = (names - {"fraction", "integer"}) | {"number"}
    return sorted(names)


def type_of(value: Json) -> str:
    """The type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if value == int(value) else "fraction"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def equal(a: Json, b: Json) -> bool:
    """Equality of JSON values: true is not 1, but 1.0 is."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return bool(a == b) and isinstance(a, str) == isinstance(b, str)


class Knowledge:
    """Facts about schemas of a document; a fact that is not certain is not returned."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def types(self, place: Place, look: int = MAX_LOOK) -> frozenset[str]:
        """A superset of the types of a schema's values."""
        place = self.meant(place)
        schema = place.schema
        if isinstance(schema, bool):
            return ALL_TYPES if schema else frozenset()
        if look == 0:
            return ALL_TYPES
        found = declared_types(place)
        values = finite_values(schema)
        if values is not None:
            found &= frozenset(map(type_of, values))
        for part in self._all(place):
            found &= self.types(part, look - 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                options = [place.at(keyword, i) for i in range(len(schema[keyword]))]
                found &= frozenset().union(*(self.types(o, look - 1) for o in options))
        return found

    def values(self, place: Place, look: int = MAX_LOOK) -> list[Json] | None:
        """A superset of a schema's values if they are few enough to list."""
        place = self.meant(place)
        if look == 0 or isinstance(place.schema, bool):
            return None
        found = finite_values(place.schema)
        target = self.follow(place)
        if found is None and target is not None:
            return self.values(target, look - 1)
        if found is None and self.types(place) <= {"null", "boolean"}:
            types = self.types(place)
            return [v for v in (None, False, True) if type_of(v) in types]
        return found

    def follow(self, place: Place) -> Place | None:
        """The target of a schema's $ref; None without one or if it cannot be found."""
        if "$ref" not in place.schema:
            return None
        try:
            return self.document.resolve(place, place.schema["$ref"])
        except ConstraintError:
            return None  # the rewriting reports it with its pointer

    def meant(self, place: Place) -> Place:
        """The schema that counts: the target of a $ref that overrides its neighbours, or itself."""
        for _ in range(MAX_LOOK):
            if isinstance(place.schema, bool) or not self.document.ignores_siblings:
                break
            target = self.follow(place)
            if target is None:
                break
            place = target
        return place

    def disjoint(self, a: Place, b: Place, look: int = MAX_LOOK) -> bool:
        """Whether it is certain that no value is valid under both."""
        a, b = self.meant(a), self.meant(b)
        common = self.types(a) & self.types(b)
        if not common:
            return True
        if look == 0 or a.schema is True or b.schema is True:
            return False
        if self._values_disjoint(a, b):
            return True
        if any(self.disjoint(part, b, look - 1) for part in self._all(a)):
            return True
        if any(self.disjoint(a, part, look - 1) for part in self._all(b)):
            return True
        if common <= {"object"}:
            return self._objects_disjoint(a, b, look)
        return common <= {"integer", "fraction"} and _ranges_disjoint(a.schema, b.schema)

    def _values_disjoint(self, a: Place, b: Place) -> bool:
        first, second = self.values(a), self.values(b)
        if first is None or second is None or len(first) * len(second) > 100_000:
            return False
        return not any(equal(x, y) for x in first for y in second)

    def _all(self, place: Place) -> list[Place]:
        """Further schemas that a schema's values satisfy."""
        found = [place.at("allOf", i) for i in range(len(place.schema.get("allOf", ())))]
        target = self.follow(place)
        return [*found, target] if target is not None else found

    def _objects_disjoint(self, a: Place, b: Place, look: int) -> bool:
        needs, asks = a.schema.get("required", ()), b.schema.get("required", ())
        if any(_forbids(b.schema, n) for n in needs) or any(_forbids(a.schema, n) for n in asks):
            return True
        return any(
            self.disjoint(a.at("properties", name), b.at("properties", name), look - 1)
            for name in a.schema.get("properties", {}).keys() & b.schema.get("properties", {})
            if name in needs and name in asks
        )


def finite_values(schema: Schema) -> list[Json] | None:
    """The values of `const` or `enum`; None without them."""
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _forbids(schema: Schema, name: str) -> bool:
    properties = schema.get("properties", {})
    if name in properties:
        return properties[name] is False
    return schema.get("additionalProperties") is False and not schema.get("patternProperties")


def _ranges_disjoint(a: Schema, b: Schema) -> bool:
    for first, second in ((a, b), (b, a)):
        high, strict_high = _bound(first, "maximum", "exclusiveMaximum", min)
        low, strict_low = _bound(second, "minimum", "exclusiveMinimum", max)
        if high is None or low is None:
            continue
        if high < low or (high == low and (strict_high or strict_low)):
            return True
    return False


def _bound(schema: Schema, plain: str, exclusive: str, pick: Pick) -> tuple[float | None, bool]:
    found = [
        (schema[k], k == exclusive) for k in (plain, exclusive)
        if not isinstance(schema.get(k, False), bool)
    ]  # fmt: skip
    return pick(found) if found else (None, False)
