"""A JSON value against a schema, after the fact: the guard for keywords that masks left out.

Follows JSON Schema 2020-12, and draft 7 where the schema says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from radixlang.errors import ConstraintError
from radixlang.runtime.constraints.schema.formats import conforms
from radixlang.runtime.constraints.schema.reading import Document, Place
from radixlang.runtime.constraints.schema.search import occurs
from radixlang.runtime.constraints.schema.types import declared_types, equal, type_of

_NUMBERS = ("integer", "fraction")


class Evaluated:
    """Which properties and items of one value some schema has looked at."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.items: set[int] = set()

    def add(self, other: Evaluated) -> None:
        """Take over what another one holds."""
        self.names |= other.names
        self.items |= other.items


class Validator:
    """Validates values against one document.

    Args:
        document: the schema read.
        asserts_formats: whether `format` is more than a remark.
    """

    def __init__(self, document: Document, *, asserts_formats: bool = True) -> None:
        self.document, self.asserts_formats = document, asserts_formats

    def first_error(self, value: Any) -> str | None:
        """The pointer of the first keyword that a value breaks, None for a valid one."""
        return self.check(self.document.root, value, Evaluated())

    def is_valid(self, place: Place, value: Any, seen: Evaluated | None = None) -> bool:
        """Whether a value is valid; what was evaluated is added to `seen` only if it is."""
        inner = Evaluated()
        if self.check(place, value, inner) is not None:
            return False
        if seen is not None:
            seen.add(inner)
        return True

    def check(self, place: Place, value: Any, seen: Evaluated) -> str | None:
        """The pointer of the first keyword that a value breaks."""
        schema = place.schema
        if isinstance(schema, bool):
            return None if schema else place.pointer or "/"
        if "$ref" in schema and self.document.ignores_siblings:
            target = self.document.resolve(place, schema["$ref"])
            return None if self.is_valid(target, value, seen) else f"{place.pointer}/$ref"
        for keyword, test in self._tests(place, value, seen):
            if not test():
                return f"{place.pointer}/{keyword}"
        return None

    def _tests(
        self, place: Place, value: Any, seen: Evaluated
    ) -> Iterator[tuple[str, Callable[[], bool]]]:
        rules: dict[str, Callable[[Place, Any, Evaluated], bool]] = {
            "type": lambda p, v, s: type_of(v) in declared_types(p),
            "const": lambda p, v, s: equal(v, p.schema["const"]),
            "enum": lambda p, v, s: any(equal(v, w) for w in p.schema["enum"]),
            "$ref": self._reference, "$dynamicRef": self._reference,
            "allOf": self._all_of, "anyOf": self._any_of, "oneOf": self._one_of,
            "not": lambda p, v, s: not self.is_valid(p.at("not"), v),
            "if": self._condition,
        }  # fmt: skip
        if self.asserts_formats:
            rules["format"] = lambda p, v, s: conforms(p.schema["format"], v)
        kind = type_of(value)
        if kind in _NUMBERS:
            rules |= _number_rules()
        elif kind == "string":
            rules |= _string_rules()
        elif kind == "array":
            rules |= self._array_rules()
        elif kind == "object":
            rules |= self._object_rules()
        late = ("unevaluatedItems", "unevaluatedProperties")
        for keyword in sorted(rules, key=lambda name: name in late):
            if keyword in place.schema:
                rule = rules[keyword]
                yield keyword, lambda rule=rule: rule(place, value, seen)  # type: ignore[misc]

    def _reference(self, place: Place, value: Any, seen: Evaluated) -> bool:
        keyword = "$ref" if "$ref" in place.schema else "$dynamicRef"
        target = self.document.resolve(place, place.schema[keyword], keyword)
        return self.is_valid(target, value, seen)

    def _all_of(self, place: Place, value: Any, seen: Evaluated) -> bool:
        num = len(place.schema["allOf"])
        return all(self.is_valid(place.at("allOf", i), value, seen) for i in range(num))

    def _num_valid(self, place: Place, keyword: str, value: Any, seen: Evaluated) -> int:
        num = len(place.schema[keyword])
        return sum([self.is_valid(place.at(keyword, i), value, seen) for i in range(num)])

    def _any_of(self, place: Place, value: Any, seen: Evaluated) -> bool:
        return self._num_valid(place, "anyOf", value, seen) > 0

    def _one_of(self, place: Place, value: Any, seen: Evaluated) -> bool:
        return self._num_valid(place, "oneOf", value, seen) == 1

    def _condition(self, place: Place, value: Any, seen: Evaluated) -> bool:
        holds = self.is_valid(place.at("if"), value, seen)
        branch = "then" if holds else "else"
        return branch not in place.schema or self.is_valid(place.at(branch), value, seen)

    # arrays

    def _array_rules(self) -> dict[str, Callable[[Place, Any, Evaluated], bool]]:
        return {
            "minItems": lambda p, v, s: len(v) >= p.schema["minItems"],
            "maxItems": lambda p, v, s: len(v) <= p.schema["maxItems"],
            "uniqueItems": lambda p, v, s: not p.schema["uniqueItems"] or _all_different(v),
            "prefixItems": lambda p, v, s: self._prefix(p, "prefixItems", v, s),
            "items": self._items,
            "additionalItems": self._additional_items,
            "contains": self._contains,
            "unevaluatedItems": self._unevaluated_items,
        }

    def _prefix(self, place: Place, keyword: str, value: Any, seen: Evaluated) -> bool:
        num = min(len(value), len(place.schema[keyword]))
        seen.items.update(range(num))
        return all(self.is_valid(place.at(keyword, i), value[i]) for i in range(num))

    def _rest(self, place: Place, keyword: str, value: Any, start: int, seen: Evaluated) -> bool:
        seen.items.update(range(start, len(value)))
        return all(self.is_valid(place.at(keyword), item) for item in value[start:])

    def _items(self, place: Place, value: Any, seen: Evaluated) -> bool:
        if isinstance(place.schema["items"], list):
            return self._prefix(place, "items", value, seen)
        return self._rest(place, "items", value, len(place.schema.get("prefixItems", ())), seen)

    def _additional_items(self, place: Place, value: Any, seen: Evaluated) -> bool:
        items = place.schema.get("items")
        if not isinstance(items, list):
            return True
        return self._rest(place, "additionalItems", value, len(items), seen)

    def _contains(self, place: Place, value: Any, seen: Evaluated) -> bool:
        found = [i for i, item in enumerate(value) if self.is_valid(place.at("contains"), item)]
        seen.items.update(found)
        least, most = place.schema.get("minContains", 1), place.schema.get("maxContains")
        return len(found) >= least and (most is None or len(found) <= most)

    def _unevaluated_items(self, place: Place, value: Any, seen: Evaluated) -> bool:
        rest = [i for i in range(len(value)) if i not in seen.items]
        seen.items.update(rest)
        return all(self.is_valid(place.at("unevaluatedItems"), value[i]) for i in rest)

    # objects

    def _object_rules(self) -> dict[str, Callable[[Place, Any, Evaluated], bool]]:
        return {
            "required": lambda p, v, s: all(name in v for name in p.schema["required"]),
            "minProperties": lambda p, v, s: len(v) >= p.schema["minProperties"],
            "maxProperties": lambda p, v, s: len(v) <= p.schema["maxProperties"],
            "properties": self._properties,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "propertyNames": self._property_names,
            "dependentRequired": self._dependencies("dependentRequired"),
            "dependentSchemas": self._dependencies("dependentSchemas"),
            "dependencies": self._dependencies("dependencies"),
            "unevaluatedProperties": self._unevaluated_properties,
        }

    def _properties(self, place: Place, value: Any, seen: Evaluated) -> bool:
        names = [name for name in place.schema["properties"] if name in value]
        seen.names.update(names)
        return all(self.is_valid(place.at("properties", n), value[n]) for n in names)

    def _pattern_properties(self, place: Place, value: Any, seen: Evaluated) -> bool:
        for pattern in place.schema["patternProperties"]:
            names = [name for name in value if occurs(pattern, name)]
            seen.names.update(names)
            where = place.at("patternProperties", pattern)
            if not all(self.is_valid(where, value[name]) for name in names):
                return False
        return True

    def _additional_properties(self, place: Place, value: Any, seen: Evaluated) -> bool:
        patterns = place.schema.get("patternProperties", {})
        named = place.schema.get("properties", {})
        rest = [n for n in value if n not in named and not any(occurs(p, n) for p in patterns)]
        seen.names.update(rest)
        return all(self.is_valid(place.at("additionalProperties"), value[n]) for n in rest)

    def _property_names(self, place: Place, value: Any, seen: Evaluated) -> bool:
        return all(self.is_valid(place.at("propertyNames"), name) for name in value)

    def _dependencies(self, keyword: str) -> Callable[[Place, Any, Evaluated], bool]:
        def test(place: Place, value: Any, seen: Evaluated) -> bool:
            for name, needs in place.schema[keyword].items():
                if name not in value:
                    continue
                if isinstance(needs, list):
                    if not all(other in value for other in needs):
                        return False
                elif not self.is_valid(place.at(keyword, name), value, seen):
                    return False
            return True

        return test

    def _unevaluated_properties(self, place: Place, value: Any, seen: Evaluated) -> bool:
        rest = [name for name in value if name not in seen.names]
        seen.names.update(rest)
        return all(self.is_valid(place.at("unevaluatedProperties"), value[n]) for n in rest)


def _number_rules() -> dict[str, Callable[[Place, Any, Evaluated], bool]]:
    return {
        "minimum": lambda p, v, s: (
            v > p.schema["minimum"]
            or (v == p.schema["minimum"] and p.schema.get("exclusiveMinimum") is not True)
        ),
        "maximum": lambda p, v, s: (
            v < p.schema["maximum"]
            or (v == p.schema["maximum"] and p.schema.get("exclusiveMaximum") is not True)
        ),
        "exclusiveMinimum": lambda p, v, s: (
            isinstance(p.schema["exclusiveMinimum"], bool) or v > p.schema["exclusiveMinimum"]
        ),
        "exclusiveMaximum": lambda p, v, s: (
            isinstance(p.schema["exclusiveMaximum"], bool) or v < p.schema["exclusiveMaximum"]
        ),
        "multipleOf": lambda p, v, s: _is_multiple(v, p.schema["multipleOf"]),
    }


def _string_rules() -> dict[str, Callable[[Place, Any, Evaluated], bool]]:
    return {
        "minLength": lambda p, v, s: len(v) >= p.schema["minLength"],
        "maxLength": lambda p, v, s: len(v) <= p.schema["maxLength"],
        "pattern": lambda p, v, s: occurs(p.schema["pattern"], v),
    }


def _is_multiple(value: float, step: float) -> bool:
    return (Fraction(str(value)) / Fraction(str(step))).denominator == 1  # as they are written


def _all_different(items: list[Any]) -> bool:
    return not any(equal(a, b) for i, a in enumerate(items) for b in items[:i])


def checker(document: Document, *, asserts_formats: bool) -> Callable[[Any], None]:
    """A function that raises a ConstraintError for a value that the whole schema refuses."""
    validator = Validator(document, asserts_formats=asserts_formats)

    def check(value: Any) -> None:
        try:
            broken = validator.first_error(value)
        except ConstraintError:
            return  # what cannot be followed was named among the ignored keywords
        if broken is not None:
            raise ConstraintError(
                f"the text breaks #{broken}, which strict=False left out of the masks"
            )

    return check
