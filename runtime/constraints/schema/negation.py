"""What a schema does not allow, as a choice of schemas, for `not`, `if` and `oneOf`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from radixlang.runtime.constraints.grammar.pattern import (
    ANY_TEXT,
    EMPTY,
    Pattern,
    Text,
    alt,
    cat,
    chars,
    negate,
)
from radixlang.runtime.constraints.schema.formats import negated_format
from radixlang.runtime.constraints.schema.patterns import engine_regex, written
from radixlang.runtime.constraints.schema.reading import ALL_TYPES, Place
from radixlang.runtime.constraints.schema.types import (
    declared_types,
    equal,
    finite_values,
    type_names,
    type_of,
)

if TYPE_CHECKING:
    from radixlang.runtime.constraints.schema.rewriting import Rewriter

MAX_NEGATION_DEPTH = 24

_NUMBERS = frozenset(["integer", "fraction"])
ASSERTS: dict[str, frozenset[str]] = {  # keywords that refuse values, and of which types
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBERS),
    "multipleOf": _NUMBERS,
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), frozenset(["string"])),
    **dict.fromkeys(
        ("minItems", "maxItems", "items", "prefixItems", "additionalItems", "contains",
         "uniqueItems", "unevaluatedItems"), frozenset(["array"])),
    **dict.fromkeys(
        ("required", "properties", "minProperties", "maxProperties", "additionalProperties",
         "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas",
         "dependencies", "unevaluatedProperties"), frozenset(["object"])),
    **dict.fromkeys(
        ("type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef",
         "$recursiveRef"), ALL_TYPES),
}  # fmt: skip


class Negation:
    """Negates schemas of one document."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self._open: list[str] = []
        self._rules: dict[str, Callable[[Place, frozenset[str]], Iterator[Any]]] = {
            "type": self._type, "enum": self._values, "const": self._values,
            "allOf": self._all_of, "anyOf": self._any_of, "oneOf": self._one_of, "not": self._not,
            "if": self._condition, "$ref": self._reference, "required": self._required,
            "properties": self._properties, "prefixItems": self._prefix, "items": self._items,
            "contains": self._contains, "dependentRequired": self._dependent,
            "minimum": self._bound, "maximum": self._bound, "exclusiveMinimum": self._bound,
            "exclusiveMaximum": self._bound, "minLength": self._count, "maxLength": self._count,
            "minItems": self._count, "maxItems": self._count, "minProperties": self._count,
            "maxProperties": self._count, "pattern": self._pattern, "format": self._format,
        }  # fmt: skip

    def of(self, place: Place, types: frozenset[str]) -> list[Any]:
        """Schemas of which each value outside of the given one, of one of the types, fits one.

        Raises:
            RefusedKeywordError: the complement cannot be said, for the keyword that it names.
        """
        schema = place.schema
        if isinstance(schema, bool):
            return [] if schema else [{}]
        if len(self._open) > MAX_NEGATION_DEPTH or place.pointer in self._open:
            raise self.rewriter.refuse(place, "", "the complement of a recursive schema")
        self.rewriter.count(place)
        self._open.append(place.pointer)
        try:
            return self._alternatives(place, types)
        finally:
            self._open.pop()

    def _alternatives(self, place: Place, types: frozenset[str]) -> list[Any]:
        found: list[Any] = []
        inside = self.rewriter.knowledge.types(place)
        if "$ref" in place.schema and self.rewriter.document.ignores_siblings:
            return list(self._reference(place, types))
        for keyword in place.schema:
            applies = ASSERTS.get(keyword)
            if applies is None or not applies & types or not self.rewriter.wants(place, keyword):
                continue
            if applies != ALL_TYPES and not applies & inside & types:
                continue  # values of this type are outside already by `type` or `enum`
            rule = self._rules.get(keyword)
            if rule is None and self._says_nothing(place, keyword):
                continue
            if rule is None:
                raise self.rewriter.refuse(place, keyword, "its complement cannot be enforced")
            found.extend(rule(place, types))
        return [a for i, a in enumerate(found) if a not in found[:i]]

    @staticmethod
    def _says_nothing(place: Place, keyword: str) -> bool:
        value = place.schema[keyword]
        return not value if keyword == "uniqueItems" else value in (True, {})

    def _typed(self, place: Place, keyword: str, types: frozenset[str]) -> list[Any]:
        names = type_names(types)
        if names is None:
            raise self.rewriter.refuse(place, keyword, "numbers that are not integers")
        return [{"type": names if len(names) != 1 else names[0]}] if names else []

    def _type(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        yield from self._typed(place, "type", types - declared_types(place))

    def _values(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        values = finite_values(place.schema) or []
        keyword = "const" if "const" in place.schema else "enum"
        listed = frozenset(map(type_of, values))
        if listed & _NUMBERS:
            listed |= _NUMBERS
        yield from self._typed(place, keyword, types - listed)
        strings = [v for v in values if isinstance(v, str)]
        if strings and "string" in types:
            yield {"type": "string", "pattern": written(other_strings(strings))}
        numbers = sorted({v for v in values if type_of(v) in _NUMBERS})
        if numbers and types & _NUMBERS:
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
                raise self.rewriter.refuse(place, keyword, f"all {kind}s but the listed ones")
            yield {"type": kind, count: 1}

    def _all_of(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        for index in range(len(place.schema["allOf"])):
            yield from self.of(place.at("allOf", index), types)

    def _any_of(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        yield from self._none(place, "anyOf", types)

    def _none(self, place: Place, keyword: str, types: frozenset[str]) -> Iterator[Any]:
        num = len(place.schema[keyword])
        complements = [self.of(place.at(keyword, i), types) for i in range(num)]
        if all(complements):
            yield self.rewriter.all_of([self.rewriter.any_of(c) for c in complements])

    def _one_of(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        yield from self._none(place, "oneOf", types)
        options = [place.at("oneOf", i) for i in range(len(place.schema["oneOf"]))]
        for a, b in combinations(options, 2):
            if not self.rewriter.knowledge.disjoint(a, b):
                yield self.rewriter.all_of([self.rewriter.schema(a), self.rewriter.schema(b)])

    def _not(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        inner = self.rewriter.schema(place.at("not"))
        if inner is not False:
            yield inner

    def _condition(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        rewriter, test = self.rewriter, place.at("if")
        if "then" in place.schema:
            wrong = self.of(place.at("then"), types)
            if wrong:
                yield rewriter.all_of([rewriter.schema(test), rewriter.any_of(wrong)])
        if "else" in place.schema:
            wrong, fails = self.of(place.at("else"), types), self.of(test, types)
            if wrong and fails:
                yield rewriter.all_of([rewriter.any_of(fails), rewriter.any_of(wrong)])

    def _reference(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        target = self.rewriter.document.resolve(place, place.schema["$ref"])
        yield from self.of(target, types)

    def _required(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        for name in place.schema["required"]:
            yield {"type": "object", "properties": {name: False}}

    def _properties(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        for name in place.schema["properties"]:
            wrong = self.of(place.at("properties", name), ALL_TYPES)
            if wrong:
                yield {
                    "type": "object",
                    "properties": {name: self.rewriter.any_of(wrong)},
                    "required": [name],
                }

    def _prefix(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        for index in range(len(place.schema["prefixItems"])):
            yield from self._at_index(place.at("prefixItems", index), index)

    def _at_index(self, item: Place, index: int) -> Iterator[Any]:
        wrong = self.of(item, ALL_TYPES)
        if wrong:
            yield {
                "type": "array",
                "prefixItems": [*[True] * index, self.rewriter.any_of(wrong)],
                "minItems": index + 1,
            }

    def _items(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        items = place.schema["items"]
        if isinstance(items, list):
            for index in range(len(items)):
                yield from self._at_index(place.at("items", index), index)
        elif items is False:
            yield {"type": "array", "minItems": len(place.schema.get("prefixItems", ())) + 1}
        elif items not in (True, {}):
            raise self.rewriter.refuse(place, "items", "its complement cannot be enforced")

    def _contains(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        if {"minContains", "maxContains"} & place.schema.keys():
            raise self.rewriter.refuse(place, "contains", "the complement of a count of items")
        wrong = self.rewriter.any_of(self.of(place.at("contains"), ALL_TYPES))
        yield {"type": "array", "items": wrong}

    def _dependent(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        for name, needs in place.schema["dependentRequired"].items():
            for other in needs:
                if other != name:
                    yield {"type": "object", "required": [name], "properties": {other: False}}

    def _bound(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        opposite = {
            "minimum": "exclusiveMaximum", "exclusiveMinimum": "maximum",
            "maximum": "exclusiveMinimum", "exclusiveMaximum": "minimum",
        }  # fmt: skip
        kind = "number" if "fraction" in types else "integer"
        bounds: dict[str, Any] = {}
        self.rewriter._numbers(place, bounds)
        for keyword, value in bounds.items():
            yield {"type": kind, opposite[keyword]: value}

    def _pattern(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        with self.rewriter.naming(place, "pattern"):
            yield {
                "type": "string",
                "pattern": engine_regex(place.schema["pattern"], complement=True),
            }

    def _format(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        if not self.rewriter.asserts_formats:
            return
        with self.rewriter.naming(place, "format"):
            found = negated_format(place.schema["format"])
        if found is not None:
            yield found

    def _count(self, place: Place, types: frozenset[str]) -> Iterator[Any]:
        for keyword in ("Length", "Items", "Properties"):
            kind = {"Length": "string", "Items": "array", "Properties": "object"}[keyword]
            if kind not in types:
                continue
            if f"min{keyword}" in place.schema:
                least = int(place.schema[f"min{keyword}"])
                if least > 0:
                    yield {"type": kind, f"max{keyword}": least - 1}
            if f"max{keyword}" in place.schema:
                most = int(place.schema[f"max{keyword}"])
                yield {"type": kind, f"min{keyword}": most + 1}


def _between(numbers: list[Any], kind: str) -> Iterator[Any]:
    """Numbers that are none of the sorted ones."""
    yield {"type": kind, "exclusiveMaximum": numbers[0]}
    for low, high in pairwise(numbers):
        if kind == "number" or high - low > 1:
            yield {"type": kind, "exclusiveMinimum": low, "exclusiveMaximum": high}
    yield {"type": kind, "exclusiveMinimum": numbers[-1]}


def other_strings(strings: list[str]) -> Pattern:
    """Every string that is none of the given ones, through their trie."""
    trie: dict[str, Any] = {}
    for text in strings:
        node = trie
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return _other(trie)


def _other(node: dict[str, Any]) -> Pattern:
    letters = [char for char in node if char]
    others = negate(chars((ord(char), ord(char)) for char in letters))
    ways: list[Pattern] = [] if "" in node else [EMPTY]
    ways.append(cat(others, ANY_TEXT))
    ways.extend(cat(Text(char), _other(node[char])) for char in letters)
    return alt(*ways)
