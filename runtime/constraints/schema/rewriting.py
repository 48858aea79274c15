"""Schemas rewritten into the dialect that the mask engine enforces exactly.

Everything is expressed by the engine's own conjunction (allOf) and choice (anyOf). A keyword that
needs more is refused with its pointer, or with strict=False skipped and listed. The rewriting of a
keyword, and its complement, are in its entry of the table of keywords.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from radixlang.errors import InvalidConstraintError, UnsupportedConstraintError
from radixlang.json_types import Schema, Subschema
from radixlang.runtime.constraints.schema.reading import ALL_TYPES, Document, Place
from radixlang.runtime.constraints.schema.types import Knowledge, type_names

MAX_NODES = 60_000
MAX_IGNORED = 200
MAX_COMPLEMENT_DEPTH = 24


class RefusedKeywordError(UnsupportedConstraintError):
    """A keyword that cannot be enforced, with its pointer."""

    def __init__(self, pointer: str, why: str) -> None:
        super().__init__(f"#{pointer}: {why}")
        self.pointer = pointer


# adds to the keywords that are written, and returns schemas that must hold as well
KeywordWriter: TypeAlias = "Callable[[Rewriter, Place, Schema], list[Subschema]]"
# schemas whose union has all values of some types that the keyword refuses
Complement: TypeAlias = "Callable[[Rewriter, Place, frozenset[str]], Iterator[Subschema]]"


@dataclass(frozen=True, slots=True)
class WritingRules:
    """How each keyword is written.

    Args:
        writings: in the order in which they are applied.
        when_skipped: what is written instead if a keyword is left out.
        refuses: the types of values that a keyword can refuse.
        complements: of keywords that have one.
    """

    writings: Mapping[str, KeywordWriter]
    when_skipped: Mapping[str, KeywordWriter]
    refuses: Mapping[str, frozenset[str]]
    complements: Mapping[str, Complement]


class Rewriter:
    """Rewrites one document.

    Args:
        document: the schema.
        rules: how each keyword is written.
        skipped: pointers of keywords to leave out; grows as more are found.
        strict: refuse a keyword that cannot be enforced; False leaves it out.
        asserts_formats: whether `format` asserts instead of annotating.

    Attributes:
        num_property_pairs: pairs that the engine has to compare, for a bound on them.
    """

    def __init__(
        self,
        document: Document,
        rules: WritingRules,
        skipped: set[str],
        *,
        strict: bool,
        asserts_formats: bool = True,
    ) -> None:
        self.document, self.rules, self.skipped = document, rules, skipped
        self.strict, self.asserts_formats = strict, asserts_formats
        self.knowledge = Knowledge(document)
        self.definitions: Schema = {}
        self.num_nodes = self.num_property_pairs = 0
        self._names: dict[str, str] = {}
        self._num_blamed = 0  # keywords being written whose parts must be exact
        self._open: list[str] = []  # places whose complement is being written

    def run(self, place: Place | None = None) -> Schema:
        """The whole document, or one schema of it, with its definitions."""
        root = self.schema(place or self.document.root)
        if not isinstance(root, dict):
            root = {} if root else {"enum": []}
        return {**root, "$defs": self.definitions} if self.definitions else root

    def schema(self, place: Place) -> Subschema:
        """One schema, rewritten."""
        schema = place.schema
        if isinstance(schema, bool):
            return schema
        while True:
            counts, num_names = (self.num_nodes, self.num_property_pairs), len(self._names)
            try:
                return self._written(place)
            except RefusedKeywordError as error:
                is_own = error.pointer.rpartition("/")[0] == place.pointer
                if self._num_blamed or not is_own or not self.skip(error):
                    raise
            self.num_nodes, self.num_property_pairs = counts
            for names in (self._names, self.definitions):
                while len(names) > num_names:
                    names.popitem()

    def _written(self, place: Place) -> Subschema:
        self.count(place)
        if self.document.ignores_siblings and "$ref" in place.schema:
            return self.defined(self.document.resolve(place, place.schema["$ref"]))
        out: Schema = {}
        extra: list[Subschema] = []
        for keyword, write in self.rules.writings.items():
            if self.wants(place, keyword):
                extra += write(self, place, out)
            elif keyword in place.schema and keyword in self.rules.when_skipped:
                extra += self.rules.when_skipped[keyword](self, place, out)
        if not extra:
            return out
        return {"allOf": [*([out] if out else []), *extra]} if out or len(extra) > 1 else extra[0]

    def wants(self, place: Place, keyword: str) -> bool:
        """Whether the schema has a keyword that is not to be skipped."""
        return keyword in place.schema and f"{place.pointer}/{keyword}" not in self.skipped

    def count(self, place: Place, num: int = 1) -> None:
        """Count written parts, and refuse a schema that grows too large."""
        self.num_nodes += num
        if self.num_nodes > MAX_NODES:
            raise UnsupportedConstraintError(
                f"#{place.pointer}: the schema grows beyond {MAX_NODES} parts when rewritten"
            )

    # refusals

    def skip(self, error: RefusedKeywordError) -> bool:
        """Leave a refused keyword out from here on; False if that is not allowed."""
        if self.strict or error.pointer in self.skipped or len(self.skipped) >= MAX_IGNORED:
            return False
        self.skipped.add(error.pointer)
        return True

    def refuse(self, place: Place, keyword: str, why: str) -> RefusedKeywordError:
        """The error for a keyword that cannot be enforced."""
        return RefusedKeywordError(f"{place.pointer}/{keyword}", why)

    @contextmanager
    def naming(self, place: Place, keyword: str) -> Iterator[None]:
        """Turns an error of a pattern into one of its keyword."""
        try:
            yield
        except InvalidConstraintError as error:
            raise InvalidConstraintError(f"#{place.pointer}/{keyword}: {error}") from None
        except RefusedKeywordError:
            raise
        except UnsupportedConstraintError as error:
            raise self.refuse(place, keyword, str(error)) from None

    @contextmanager
    def blaming(self, place: Place, keyword: str) -> Iterator[None]:
        """Turns the error of a complement into one of the keyword that needs it."""
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

    # definitions

    def defined(self, target: Place) -> Schema:
        """A reference into $defs, where a schema of the document is written once."""
        key = f"{target.base}#{target.pointer}"
        if key not in self._names:
            self._names[key] = f"r{len(self._names)}"
            self.definitions[self._names[key]] = None  # holds its place while it is written
            self.definitions[self._names[key]] = self.schema(target)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def pointer(self, name: str) -> str:
        """The place in the document whose definition has this name."""
        return next(key.partition("#")[2] for key, own in self._names.items() if own == name)

    # complements

    def complement(self, place: Place, types: frozenset[str]) -> list[Subschema]:
        """Schemas whose union has every value of the types that the given schema refuses.

        Raises:
            RefusedKeywordError: the complement of the named keyword cannot be expressed.
        """
        schema = place.schema
        if isinstance(schema, bool):
            return [] if schema else [{}]
        if len(self._open) > MAX_COMPLEMENT_DEPTH or place.pointer in self._open:
            raise self.refuse(place, "", "the complement of a recursive schema")
        self.count(place)
        self._open.append(place.pointer)
        try:
            found = [a for keyword in self._asserted(place, types)
                     for a in self._complement_of(place, keyword, types)]  # fmt: skip
            return [a for i, a in enumerate(found) if a not in found[:i]]
        finally:
            self._open.pop()

    def _asserted(self, place: Place, types: frozenset[str]) -> list[str]:
        """The keywords of a schema that refuse values of some types."""
        if self.document.ignores_siblings and "$ref" in place.schema:
            return ["$ref"]
        inside, found = self.knowledge.types(place), []
        for keyword in place.schema:
            refused = self.rules.refuses.get(keyword, frozenset()) & types
            # `type` or `enum` refuse values of other types already
            if self.rules.refuses.get(keyword) != ALL_TYPES:
                refused &= inside
            if refused and self.wants(place, keyword):
                found.append(keyword)
        return found

    def _complement_of(
        self, place: Place, keyword: str, types: frozenset[str]
    ) -> Iterator[Subschema]:
        rule = self.rules.complements.get(keyword)
        if rule is not None:
            return rule(self, place, types)
        if place.schema[keyword] in (True, {}) or (
            keyword == "uniqueItems" and not place.schema[keyword]
        ):
            return iter(())
        raise self.refuse(place, keyword, "its complement cannot be enforced")

    def typed(self, place: Place, keyword: str, types: frozenset[str]) -> list[Subschema]:
        """A schema of all values of some types; none if there are no types.

        Raises:
            RefusedKeywordError: it would need numbers that are not integers.
        """
        names = type_names(types)
        if names is None:
            raise self.refuse(place, keyword, "numbers that are not integers")
        return [{"type": names if len(names) != 1 else names[0]}] if names else []


def without(place: Place, keyword: str) -> Place:
    """A schema without one of its keywords."""
    rest = {k: v for k, v in place.schema.items() if k != keyword}
    return Place(rest, place.pointer, place.base)


def all_of(schemas: list[Subschema]) -> Subschema:
    """A conjunction."""
    kept = [s for s in schemas if s is not True and s != {}]
    if any(s is False for s in kept):
        return False
    if not kept:
        return {}
    return kept[0] if len(kept) == 1 else {"allOf": kept}


def any_of(schemas: list[Subschema]) -> Subschema:
    """A choice; without options, the schema that no value satisfies."""
    if any(s is True or s == {} for s in schemas):
        return {}
    return False if not schemas else schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
