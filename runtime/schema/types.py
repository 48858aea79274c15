"""What can be known of a schema without enumerating it: its types, its values, disjointness."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from radixlang.errors import ConstraintError
from radixlang.runtime.schema.reading import ALL_TYPES, Document, Place
from radixlang.runtime.schema.shapes import TYPE_SETS

MAX_LOOK = 12  # references and branches followed before nothing more is claimed


def declared_types(place: Place) -> frozenset[str]:
    """The types that the `type` keyword allows."""
    value = place.schema.get("type")
    if value is None:
        return ALL_TYPES
    return frozenset().union(
        *(TYPE_SETS[n] for n in (value if isinstance(value, list) else [value]))
    )


def type_names(types: Iterable[str]) -> list[str] | None:
    """Types as a `type` keyword; None where fractions without integers would be asked for."""
    names = set(types)
    if "fraction" in names:
        if "integer" not in names:
            return None
        names = (names - {"fraction", "integer"}) | {"number"}
    return sorted(names)


def type_of(value: Any) -> str:
    """The type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if value == int(value) else "fraction"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def equal(a: Any, b: Any) -> bool:
    """Equality of JSON values: true is not 1, and 1.0 is."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return bool(a == b) and isinstance(a, str) == isinstance(b, str)


class Knowledge:
    """Claims about schemas of a document; each is certain or not made."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def types(self, place: Place, look: int = MAX_LOOK) -> frozenset[str]:
        """A superset of the types of a schema's values."""
        schema = place.schema
        if isinstance(schema, bool):
            return ALL_TYPES if schema else frozenset()
        if look == 0 or not isinstance(schema, dict):
            return ALL_TYPES
        target = self.follow(place)
        found = self.types(target, look - 1) if target is not None else ALL_TYPES
        if target is not None and self.document.ignores_siblings:
            return found
        found &= declared_types(place)
        values = finite_values(schema)
        if values is not None:
            found &= frozenset(map(type_of, values))
        for index in range(len(_list(schema, "allOf"))):
            found &= self.types(place.at("allOf", index), look - 1)
        for keyword in ("anyOf", "oneOf"):
            options = _list(schema, keyword)
            if options:
                every = [self.types(place.at(keyword, i), look - 1) for i in range(len(options))]
                found &= frozenset().union(*every)
        return found

    def values(self, place: Place, look: int = MAX_LOOK) -> list[Any] | None:
        """A superset of a schema's values where they are few enough to list."""
        schema = place.schema
        if look == 0 or not isinstance(schema, dict):
            return None
        found = finite_values(schema)
        target = self.follow(place)
        if found is None and target is not None:
            return self.values(target, look - 1)
        if found is None and self.types(place) <= {"null", "boolean"}:
            types = self.types(place)
            return [v for v in (None, False, True) if type_of(v) in types]
        return found

    def follow(self, place: Place) -> Place | None:
        """The place that a schema's $ref means, None without one or where it cannot be found."""
        reference = place.schema.get("$ref") if isinstance(place.schema, dict) else None
        if not isinstance(reference, str):
            return None
        try:
            return self.document.resolve(place, reference)
        except ConstraintError:
            return None  # the rewriting reports it with its pointer

    def disjoint(self, a: Place, b: Place, look: int = MAX_LOOK) -> bool:
        """Whether no value is certainly valid under both."""
        common = self.types(a) & self.types(b)
        if not common:
            return True
        if look == 0:
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
        """Schemas that a schema's values satisfy as well."""
        if not isinstance(place.schema, dict):
            return []
        found = [place.at("allOf", i) for i in range(len(_list(place.schema, "allOf")))]
        target = self.follow(place)
        return [*found, target] if target is not None else found

    def _objects_disjoint(self, a: Place, b: Place, look: int) -> bool:
        if not isinstance(a.schema, dict) or not isinstance(b.schema, dict):
            return False
        for first, second in ((a, b), (b, a)):
            for name in _list(first.schema, "required"):
                if _forbids(second.schema, name):
                    return True
        shared = [
            n for n in _map(a.schema, "properties") if n in _map(b.schema, "properties")
            and n in [*_list(a.schema, "required"), *_list(b.schema, "required")]
        ]  # fmt: skip
        return any(
            n in _list(a.schema, "required") and n in _list(b.schema, "required")
            and self.disjoint(a.at("properties", n), b.at("properties", n), look - 1)
            for n in shared
        )  # fmt: skip


def finite_values(schema: dict[str, Any]) -> list[Any] | None:
    """The values that `const` or `enum` lists."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _forbids(schema: dict[str, Any], name: str) -> bool:
    properties = _map(schema, "properties")
    if name in properties:
        return properties[name] is False
    return schema.get("additionalProperties") is False and not schema.get("patternProperties")


def _ranges_disjoint(a: Any, b: Any) -> bool:
    for first, second in ((a, b), (b, a)):
        high, strict_high = _bound(first, "maximum", "exclusiveMaximum", min)
        low, strict_low = _bound(second, "minimum", "exclusiveMinimum", max)
        if high is None or low is None:
            continue
        if high < low or (high == low and (strict_high or strict_low)):
            return True
    return False


def _bound(schema: Any, plain: str, exclusive: str, pick: Any) -> tuple[Any, bool]:
    found = [
        (schema[k], k == exclusive) for k in (plain, exclusive)
        if isinstance(schema.get(k), (int, float)) and not isinstance(schema.get(k), bool)
    ]  # fmt: skip
    return pick(found) if found else (None, False)


def _list(schema: Any, keyword: str) -> list[Any]:
    value = schema.get(keyword) if isinstance(schema, dict) else None
    return value if isinstance(value, list) else []


def _map(schema: Any, keyword: str) -> dict[str, Any]:
    value = schema.get(keyword) if isinstance(schema, dict) else None
    return value if isinstance(value, dict) else {}
