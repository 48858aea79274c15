"""unevaluatedProperties and unevaluatedItems, case by case.

Which properties are evaluated depends on the branches that a value satisfies. A case is a set of
branches that hold; it fixes the evaluated properties, so in each case the keyword is an ordinary
additionalProperties or items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, product

from radixlang.json_types import Schema, Subschema
from radixlang.runtime.constraints.schema.patterns import engine_regex
from radixlang.runtime.constraints.schema.reading import ALL_TYPES, Place
from radixlang.runtime.constraints.schema.rewriting import Rewriter, all_of, any_of

MAX_CASES = 64
MAX_DEPTH = 12


def write_unevaluated(rewriter: Rewriter, place: Place, keyword: str) -> list[Subschema]:
    """A choice of the cases, in each of which the keyword is an ordinary one.

    Raises:
        RefusedKeywordError: there are too many cases, or one cannot be determined.
    """
    if place.schema[keyword] in (True, {}):
        return []
    with rewriter.blaming(place, keyword):
        cases = Cases(rewriter, place, keyword).schemas()
    return [any_of([case for case in cases if case is not False])]


@dataclass(slots=True)
class Case:
    """One case: the schemas that hold in it, and the parts that it evaluates."""

    holds: list[Subschema] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    num_items: int = 0
    is_all: bool = False

    def __add__(self, other: Case) -> Case:
        return Case(
            self.holds + other.holds, self.names | other.names, self.patterns | other.patterns,
            max(self.num_items, other.num_items), self.is_all or other.is_all,
        )  # fmt: skip


class Cases:
    """The cases of one schema that has an unevaluated keyword."""

    def __init__(self, rewriter: Rewriter, place: Place, keyword: str) -> None:
        self.rewriter, self.place, self.keyword = rewriter, place, keyword
        self.is_items = keyword == "unevaluatedItems"

    def schemas(self) -> list[Subschema]:
        """One schema for each case."""
        cases = list(self.cases(self.place, 0))
        if len(cases) > MAX_CASES:
            raise self.rewriter.refuse(self.place, self.keyword, f"{len(cases)} cases of branches")
        return [self._schema(case) for case in cases]

    def _schema(self, case: Case) -> Subschema:
        if case.is_all:
            return all_of(case.holds)
        rest = self.rewriter.schema(self.place.at(self.keyword))
        if self.is_items:
            own: Schema = {"items": rest}
            if case.num_items:
                own["prefixItems"] = [True] * case.num_items
        else:
            own = {
                "properties": dict.fromkeys(sorted(case.names), True),
                "additionalProperties": rest,
            }
            if case.patterns:
                with self.rewriter.naming(self.place, self.keyword):
                    regexes = map(engine_regex, sorted(case.patterns))
                    own["patternProperties"] = dict.fromkeys(regexes, True)
        return all_of([*case.holds, own])

    def cases(self, place: Place, depth: int) -> Iterator[Case]:
        """The cases of a schema that applies to the same place of the value."""
        schema = place.schema
        if isinstance(schema, bool):
            yield Case()
            return
        if depth > MAX_DEPTH:
            raise self.rewriter.refuse(self.place, self.keyword, "a recursive schema")
        if depth and self.keyword in schema:
            yield Case(is_all=True)  # it evaluates everything itself
            return
        choices = [[self._own(place)], *self._choices(place, depth)]
        for way in product(*choices):
            total = Case()
            for case in way:
                total = total + case
            yield total

    def _own(self, place: Place) -> Case:
        schema = place.schema
        if self.is_items:
            return self._own_items(place)
        every = "additionalProperties" in schema
        return Case(
            [], set(schema.get("properties", ())), set(schema.get("patternProperties", ())),
            is_all=every,
        )  # fmt: skip

    def _own_items(self, place: Place) -> Case:
        schema = place.schema
        if "contains" in schema:
            raise self.rewriter.refuse(self.place, self.keyword, "together with contains")
        items = schema.get("items")
        if isinstance(items, list):
            return Case(num_items=len(items), is_all="additionalItems" in schema)
        return Case(num_items=len(schema.get("prefixItems", ())), is_all=items is not None)

    def _choices(self, place: Place, depth: int) -> Iterator[list[Case]]:
        schema, rewriter = place.schema, self.rewriter
        if "$ref" in schema:
            target = rewriter.document.resolve(place, schema["$ref"])
            yield list(self.cases(target, depth + 1))
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            raise rewriter.refuse(self.place, self.keyword, "together with a dynamic reference")
        for index in range(len(schema.get("allOf", ()))):
            yield list(self.cases(place.at("allOf", index), depth + 1))
        if "anyOf" in schema:
            yield self._some(place, "anyOf", depth, range(1, len(schema["anyOf"]) + 1))
        if "oneOf" in schema:
            yield self._some(place, "oneOf", depth, range(1, 2))
        if "if" in schema:
            yield self._condition(place, depth)
        for name, body in schema.get("dependentSchemas", {}).items():
            yield self._dependent(place, name, body, depth)

    def _some(self, place: Place, keyword: str, depth: int, sizes: range) -> list[Case]:
        options = [place.at(keyword, i) for i in range(len(place.schema[keyword]))]
        if len(options) > 4:
            raise self.rewriter.refuse(self.place, self.keyword, f"together with a long {keyword}")
        found: list[Case] = []
        for size in sizes:
            for chosen in combinations(options, size):
                found.extend(self._together(chosen, depth))
        return found

    def _together(self, chosen: tuple[Place, ...], depth: int) -> Iterator[Case]:
        """Cases in which all of the chosen branches hold."""
        for way in product(*(list(self.cases(option, depth + 1)) for option in chosen)):
            total = Case([self.rewriter.schema(option) for option in chosen])
            for case in way:
                total = total + case
            yield total

    def _condition(self, place: Place, depth: int) -> list[Case]:
        test = place.at("if")
        found: list[Case] = []
        holds = [test, place.at("then")] if "then" in place.schema else [test]
        found.extend(self._together(tuple(holds), depth))
        fails = self.rewriter.complement(test, ALL_TYPES)
        if fails:
            other = (place.at("else"),) if "else" in place.schema else ()
            unmet = Case([any_of(fails)])
            found.extend(unmet + case for case in self._together(other, depth))
        return found

    def _dependent(self, place: Place, name: str, body: object, depth: int) -> list[Case]:
        missing = Case([{"properties": {name: False}}])
        inner = place.at("dependentSchemas", name)
        present = Case([{"required": [name]}])
        return [missing, *(present + case for case in self._together((inner,), depth))]
