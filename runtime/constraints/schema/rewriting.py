"""Schemas rewritten into the dialect that the mask engine enforces exactly.

Everything is said with the engine's own conjunction (allOf) and choice (anyOf). What would need
more than that is refused with the pointer of its keyword, or skipped and named if the user asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from radixlang.errors import InvalidConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints.schema.formats import rewrite_format
from radixlang.runtime.constraints.schema.negation import Negation
from radixlang.runtime.constraints.schema.patterns import engine_regex, engine_regexes
from radixlang.runtime.constraints.schema.reading import ALL_TYPES, Document, Place
from radixlang.runtime.constraints.schema.sequences import says_items, unique_sequences
from radixlang.runtime.constraints.schema.types import Knowledge, declared_types
from radixlang.runtime.constraints.schema.unevaluated import Cases

MAX_NODES = 60_000
MAX_ENUM_CHARS = 1_000_000
MAX_DIVISOR = 100_000
MAX_PROPERTY_PAIRS = 6_000_000  # the engine takes 0.1 us for each, and cannot be stopped
MAX_IGNORED = 200
MAX_INTEGER = 10**18 - 1  # the engine's ranges end before 64 bits do

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_PLAIN = ("type", "required", "multipleOf")


class RefusedKeywordError(UnsupportedConstraintError):
    """A keyword that cannot be enforced, with its pointer."""

    def __init__(self, pointer: str, why: str) -> None:
        super().__init__(f"#{pointer}: {why}")
        self.pointer = pointer


class Rewriter:
    """Rewrites one document.

    Args:
        document: the schema read.
        skipped: pointers of keywords to leave out; grows where more are to be.
        strict: refuse a keyword that cannot be enforced; False leaves it out.
        asserts_formats: whether `format` is more than a remark.
    """

    def __init__(
        self, document: Document, skipped: set[str], *, strict: bool, asserts_formats: bool = True
    ) -> None:
        self.document, self.skipped, self.strict = document, skipped, strict
        self.asserts_formats = asserts_formats
        self._num_pairs = 0
        self._num_blamed = 0  # keywords being written whose parts must be said exactly
        self.knowledge = Knowledge(document)
        self.negation = Negation(self)
        self.definitions: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self.num_nodes = 0

    def run(self, place: Place | None = None) -> Any:
        """The whole document, or one schema of it, definitions and all."""
        root = self.schema(place or self.document.root)
        if not isinstance(root, dict):
            root = {} if root else {"enum": []}
        return {**root, "$defs": self.definitions} if self.definitions else root

    def schema(self, place: Place) -> Any:
        """One schema."""
        schema = place.schema
        if isinstance(schema, bool):
            return schema
        while True:
            counts, num_names = (self.num_nodes, self._num_pairs), len(self._names)
            try:
                return self._written(place)
            except RefusedKeywordError as error:
                is_own = error.pointer.rpartition("/")[0] == place.pointer
                if self._num_blamed or not is_own or not self.skip(error):
                    raise
            self.num_nodes, self._num_pairs = counts
            for names in (self._names, self.definitions):
                while len(names) > num_names:
                    names.popitem()

    def skip(self, error: RefusedKeywordError) -> bool:
        """Leave a refused keyword out from here on; False where it may not be."""
        if self.strict or error.pointer in self.skipped or len(self.skipped) >= MAX_IGNORED:
            return False
        self.skipped.add(error.pointer)
        return True

    def _written(self, place: Place) -> Any:
        self.count(place)
        if "$ref" in place.schema and self.document.ignores_siblings:
            return self.reference(place)
        base = self.base(place)
        extra = [*self._texts(place, base), *(e for rule in self.rules() for e in rule(place))]
        if declared_types(place) & {"integer", "fraction"} == {"integer"}:
            _bound_digits(base)
        if not extra:
            return base
        return (
            {"allOf": [*([base] if base else []), *extra]} if base or len(extra) > 1 else extra[0]
        )

    def count(self, place: Place, num: int = 1) -> None:
        """Bound the size of what is written."""
        self.num_nodes += num
        if self.num_nodes > MAX_NODES:
            raise UnsupportedConstraintError(
                f"#{place.pointer}: the schema grows beyond {MAX_NODES} parts when rewritten"
            )

    def rules(self) -> list[Callable[[Place], list[Any]]]:
        """Rewrites of one keyword each; each gives schemas that must hold as well."""
        return [
            self._reference, self._all_of, self._any_of, self._one_of, self._not, self._condition,
            self._dependent, self._property_names, self._contains, self._unique,
            self._unevaluated, self._dynamic,
        ]  # fmt: skip

    def wants(self, place: Place, keyword: str) -> bool:
        """Whether a keyword is there and is not to be skipped."""
        return keyword in place.schema and f"{place.pointer}/{keyword}" not in self.skipped

    def refuse(self, place: Place, keyword: str, why: str) -> RefusedKeywordError:
        """The error for a keyword that cannot be enforced."""
        return RefusedKeywordError(f"{place.pointer}/{keyword}", why)

    # what the engine takes as it is

    def base(self, place: Place) -> dict[str, Any]:
        """Keywords that pass, their parts rewritten."""
        schema, out = place.schema, {}
        for keyword in _PLAIN:
            if self.wants(place, keyword):
                out[keyword] = schema[keyword]
        self._check_divisor(place)
        for keyword in _COUNTS:
            if self.wants(place, keyword):
                out[keyword] = int(schema[keyword])
        self._numbers(place, out)
        self._values(place, out)
        self._objects(place, out)
        self._arrays(place, out)
        return out

    def _texts(self, place: Place, out: dict[str, Any]) -> list[Any]:
        """Pattern and format; of the patterns that must hold, the first is put into `out`."""
        found: list[Any] = []
        if self.wants(place, "pattern"):
            with self.naming(place, "pattern"):
                regexes = engine_regexes(place.schema["pattern"])
            found += [{"pattern": regex} for regex in regexes]
        if self.asserts_formats and self.wants(place, "format"):
            with self.naming(place, "format"):
                found += rewrite_format(self, place, out)
        if found:
            out |= found.pop(0)
        return found

    def name_pattern(self, place: Place, keyword: str, source: str) -> str:
        """A pattern of names, as the engine takes it."""
        with self.naming(place, keyword):
            return engine_regex(source)

    @contextmanager
    def naming(self, place: Place, keyword: str) -> Iterator[None]:
        """What is wrong with a pattern is the fault of the keyword that it is of."""
        try:
            yield
        except InvalidConstraintError as error:
            raise InvalidConstraintError(f"#{place.pointer}/{keyword}: {error}") from None
        except RefusedKeywordError:
            raise
        except UnsupportedConstraintError as error:
            raise self.refuse(place, keyword, str(error)) from None

    def _check_divisor(self, place: Place) -> None:
        """The engine makes a state for each remainder; a fraction is scaled to a whole number."""
        if not self.wants(place, "multipleOf"):
            return
        digits = Decimal(str(place.schema["multipleOf"])).normalize().as_tuple().digits
        if int("".join(map(str, digits))) > MAX_DIVISOR:
            raise self.refuse(place, "multipleOf", f"more than {MAX_DIVISOR:,} remainders")

    def _numbers(self, place: Place, out: dict[str, Any]) -> None:
        """Bounds; draft 4 writes exclusive ones as a flag."""
        schema = place.schema
        for plain, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if self.wants(place, plain):
                out[exclusive if schema.get(exclusive) is True else plain] = schema[plain]
            if self.wants(place, exclusive) and not isinstance(schema[exclusive], bool):
                out[exclusive] = schema[exclusive]

    def _values(self, place: Place, out: dict[str, Any]) -> None:
        for keyword in ("const", "enum"):
            if self.wants(place, keyword):
                out[keyword] = place.schema[keyword]
        if len(str(out.get("enum"))) > MAX_ENUM_CHARS:
            raise self.refuse(place, "enum", f"more than {MAX_ENUM_CHARS:,} characters of values")

    def _objects(self, place: Place, out: dict[str, Any]) -> None:
        if self.wants(place, "properties"):
            names = place.schema["properties"]
            out["properties"] = {name: self.schema(place.at("properties", name)) for name in names}
        if self.wants(place, "patternProperties"):
            out["patternProperties"] = self._pattern_properties(place)
        self._bound_properties(place, len(out.get("properties", ())))
        if self.wants(place, "additionalProperties"):
            out["additionalProperties"] = self.schema(place.at("additionalProperties"))

    def _pattern_properties(self, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for source in place.schema["patternProperties"]:
            regex = self.name_pattern(place, "patternProperties", source)
            body = self.schema(place.at("patternProperties", source))
            found[regex] = self.all_of([found[regex], body]) if regex in found else body
        return found

    def _bound_properties(self, place: Place, num: int) -> None:
        self._num_pairs += num * num
        if self._num_pairs > MAX_PROPERTY_PAIRS:
            raise UnsupportedConstraintError(
                f"#{place.pointer}/properties: too complex; objects with 2,400 properties in one, "
                "or as many in several, are the most"
            )

    def _arrays(self, place: Place, out: dict[str, Any]) -> None:
        """Items; before 2020-12 a list of items was what prefixItems is now."""
        prefix, rest = "prefixItems", "items"
        if isinstance(place.schema.get("items"), list):
            prefix, rest = "items", "additionalItems"
        if self.wants(place, prefix):
            num = len(place.schema[prefix])
            out["prefixItems"] = [self.schema(place.at(prefix, i)) for i in range(num)]
        if self.wants(place, rest) and not says_items(self, place):
            out["items"] = self.schema(place.at(rest))

    # references

    def _reference(self, place: Place) -> list[Any]:
        return [self.reference(place)] if self.wants(place, "$ref") else []

    def reference(self, place: Place) -> dict[str, Any]:
        """A reference into $defs, where the schema that it means is written once."""
        return self.defined(self.document.resolve(place, place.schema["$ref"]))

    def defined(self, target: Place) -> dict[str, Any]:
        """A reference to a schema of the document."""
        key = f"{target.base}#{target.pointer}"
        if key not in self._names:
            self._names[key] = f"r{len(self._names)}"
            self.definitions[self._names[key]] = None  # holds its place while it is written
            self.definitions[self._names[key]] = self.schema(target)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def pointer(self, name: str) -> str:
        """The place in the document whose definition was given this name."""
        return next(key.partition("#")[2] for key, own in self._names.items() if own == name)

    def _dynamic(self, place: Place) -> list[Any]:
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if self.wants(place, keyword):
                return [self._lexical(place, keyword)]
        return []

    def _lexical(self, place: Place, keyword: str) -> dict[str, Any]:
        """A dynamic reference that can only mean one place is an ordinary one."""
        reference = place.schema[keyword]
        anchors = [a for (_, a) in self.document.anchors if a == reference.lstrip("#")]
        if keyword == "$recursiveRef" or len(anchors) > 1 or len(self.document.resources) > 2:
            raise self.refuse(place, keyword, "a reference that depends on the path to it")
        return self.defined(self.document.resolve(place, reference, keyword))

    # choices

    def _all_of(self, place: Place) -> list[Any]:
        return self._options(place, "allOf")

    def _any_of(self, place: Place) -> list[Any]:
        return [{"anyOf": self._options(place, "anyOf")}] if self.wants(place, "anyOf") else []

    def _options(self, place: Place, keyword: str) -> list[Any]:
        if not self.wants(place, keyword):
            return []
        return [self.schema(place.at(keyword, i)) for i in range(len(place.schema[keyword]))]

    def _one_of(self, place: Place) -> list[Any]:
        """Each option without the others that it may overlap with; any of them if skipped."""
        if "oneOf" not in place.schema:
            return []
        num = len(place.schema["oneOf"])
        places = [place.at("oneOf", i) for i in range(num)]
        options = [self.schema(p) for p in places]
        if self.wants(place, "oneOf"):
            around = self._without(place, "oneOf")
            with self.blaming(place, "oneOf"):
                options = [
                    self.all_of([option, *self._others(around, places, index)])
                    for index, option in enumerate(options)
                ]
        return [self.any_of([o for o in options if o is not False])]

    def _others(self, around: Place, places: list[Place], index: int) -> list[Any]:
        """What every rival of an option does not allow."""
        mine = places[index]
        types = self.knowledge.types(mine) & self.knowledge.types(around)
        rivals = [p for i, p in enumerate(places) if i != index]
        return [
            self.any_of(self.negation.of(rival, types))
            for rival in rivals
            if not self.knowledge.disjoint(mine, rival)
        ]

    @staticmethod
    def _without(place: Place, keyword: str) -> Place:
        rest = {k: v for k, v in place.schema.items() if k != keyword}
        return Place(rest, place.pointer, place.base)

    @contextmanager
    def blaming(self, place: Place, keyword: str) -> Iterator[None]:
        """A complement that cannot be said is the fault of the keyword that asks for it."""
        self._num_blamed += 1
        try:
            yield
        except RefusedKeywordError as error:
            pointer = f"{place.pointer}/{keyword}"
            if error.pointer == pointer:
                raise
            raise RefusedKeywordError(pointer, f"needs a complement; {error}") from None
        finally:
            self._num_blamed -= 1

    @staticmethod
    def all_of(schemas: list[Any]) -> Any:
        """A conjunction."""
        kept = [s for s in schemas if s is not True and s != {}]
        if any(s is False for s in kept):
            return False
        if not kept:
            return {}
        return kept[0] if len(kept) == 1 else {"allOf": kept}

    @staticmethod
    def any_of(schemas: list[Any]) -> Any:
        """A choice; of nothing, it is the schema that nothing satisfies."""
        if any(s is True or s == {} for s in schemas):
            return {}
        return False if not schemas else schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _not(self, place: Place) -> list[Any]:
        if not self.wants(place, "not"):
            return []
        types = self.knowledge.types(self._without(place, "not"))
        with self.blaming(place, "not"):
            return [self.any_of(self.negation.of(place.at("not"), types))]

    def _condition(self, place: Place) -> list[Any]:
        """if A then B else C is (A and B) or (not A and C)."""
        if not self.wants(place, "if") or not {"then", "else"} & place.schema.keys():
            return []
        types = self.knowledge.types(place)
        test = place.at("if")
        with self.blaming(place, "if"):
            fails = [self.any_of(self.negation.of(test, types))]
        holds = [self.schema(test)]
        if self.wants(place, "then"):
            holds.append(self.schema(place.at("then")))
        if self.wants(place, "else"):
            fails.append(self.schema(place.at("else")))
        ways = [self.all_of(holds), self.all_of(fails)]
        return [self.any_of([way for way in ways if way is not False])]

    # objects

    def _dependent(self, place: Place) -> list[Any]:
        found: list[Any] = []
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            if not self.wants(place, keyword):
                continue
            for name, value in place.schema[keyword].items():
                missing = {"properties": {name: False}}
                needs: Any = {}
                if isinstance(value, list) and value:
                    needs = {"required": [v for v in dict.fromkeys(value) if v != name] + [name]}
                elif not isinstance(value, list):
                    body = self.schema(place.at(keyword, name))
                    needs = self.all_of([{"required": [name]}, body]) if body != {} else {}
                if needs != {} and value is not True:
                    found.append(self.any_of([w for w in (missing, needs) if w is not False]))
        return found

    def _property_names(self, place: Place) -> list[Any]:
        """Names that are listed, or that fit a pattern."""
        if not self.wants(place, "propertyNames"):
            return []
        names = place.at("propertyNames")
        if names.schema in (True, {}):
            return []
        if names.schema is False:
            return [{"maxProperties": 0}]
        values = self.knowledge.values(names)
        if values is not None:
            allowed = [v for v in values if isinstance(v, str)]
            return [self._only(place, allowed)]
        return [self._fitting(place, names)]

    def _only(self, place: Place, names: list[str]) -> dict[str, Any]:
        return {"properties": dict.fromkeys(names, True), "additionalProperties": False}

    def _fitting(self, place: Place, names: Place) -> dict[str, Any]:
        schema = names.schema
        known = {"type", "pattern", "minLength", "maxLength", "description", "title", "$comment"}
        if set(schema) - known or not {"pattern", "minLength", "maxLength"} & schema.keys():
            raise self.refuse(place, "propertyNames", "only a list, a pattern or a length of names")
        if place.schema.get("properties") or place.schema.get("patternProperties"):
            raise self.refuse(place, "propertyNames", "a pattern of names beside named properties")
        if "pattern" in schema and {"minLength", "maxLength"} & schema.keys():
            raise self.refuse(place, "propertyNames", "a pattern together with a length")
        rest = place.schema.get("additionalProperties", True)
        body = self.schema(place.at("additionalProperties")) if rest is not True else True
        pattern = schema.get("pattern") or _length_pattern(
            int(schema.get("minLength", 0)), schema.get("maxLength")
        )
        pattern = self.name_pattern(place, "propertyNames", pattern)
        return {"patternProperties": {pattern: body}, "additionalProperties": False}

    # arrays

    def _contains(self, place: Place) -> list[Any]:
        if not self.wants(place, "contains"):
            return []  # minContains and maxContains mean nothing alone
        schema = place.schema
        least, most = schema.get("minContains", 1), schema.get("maxContains")
        item = place.at("contains")
        if most is None and least == 0:
            return []
        if item.schema in (True, {}):
            return [{"minItems": int(least)} | ({} if most is None else {"maxItems": int(most)})]
        if least == 0 and most == 0:
            return [{"items": self.any_of(self.negation.of(item, ALL_TYPES))}]
        limit = int(schema.get("maxItems", 9))
        if most is None and least == 1 and limit <= 8:
            body = self.schema(item)
            return [self.any_of([
                {"type": "array", "minItems": i + 1, "prefixItems": [*[True] * i, body]}
                for i in range(limit)
            ] + self.not_arrays(place))]  # fmt: skip
        raise self.refuse(place, "contains", "an item that may stand anywhere")

    def not_arrays(self, place: Place) -> list[Any]:
        """What a schema allows beside arrays, as far as it is known."""
        others = sorted(self.knowledge.types(place) - {"array", "fraction", "integer"})
        numbers = self.knowledge.types(place) & {"fraction", "integer"}
        names = [*others, *(["number"] if "fraction" in numbers else sorted(numbers))]
        return [{"type": names}] if names else []

    def _unique(self, place: Place) -> list[Any]:
        if not self.wants(place, "uniqueItems") or not place.schema["uniqueItems"]:
            return []
        if "array" not in self.knowledge.types(place):
            return []
        return unique_sequences(self, place)

    def _unevaluated(self, place: Place) -> list[Any]:
        keywords = ("unevaluatedProperties", "unevaluatedItems")
        return [
            self.any_of(self._cases(place, keyword))
            for keyword in keywords
            if self.wants(place, keyword) and place.schema[keyword] not in (True, {})
        ]

    def _cases(self, place: Place, keyword: str) -> list[Any]:
        with self.blaming(place, keyword):
            return [case for case in Cases(self, place, keyword).schemas() if case is not False]


def _bound_digits(out: dict[str, Any]) -> None:
    """Eighteen digits where a schema bounds them less: a model may write them without end."""
    values = [out[k] for k in out if k.startswith(("minimum", "maximum", "exclusive"))]
    if "const" in out or "enum" in out or any(abs(value) > MAX_INTEGER for value in values):
        return
    if not {"minimum", "exclusiveMinimum"} & out.keys():
        out["minimum"] = -MAX_INTEGER
    if not {"maximum", "exclusiveMaximum"} & out.keys():
        out["maximum"] = MAX_INTEGER


def _length_pattern(least: int, most: int | None) -> str:
    return f"^[^]{{{least},{'' if most is None else int(most)}}}$"
