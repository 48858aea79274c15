"""Validation of a finished JSON value, for keywords that the masks left out.

Follows JSON Schema 2020-12, or draft 7 if the schema says so. The test of a keyword is in its entry
of the table of keywords.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from radixlang.errors import ConstraintError
from radixlang.json_types import Json
from radixlang.runtime.constraints.schema.reading import Document, Place
from radixlang.runtime.constraints.schema.types import type_of


class Evaluated:
    """The properties and items of one value that schemas have evaluated."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.items: set[int] = set()

    def add(self, other: Evaluated) -> None:
        """Add the properties and items of another one."""
        self.names |= other.names
        self.items |= other.items


# a test gets values of the types that its keyword refuses, so it says which: list, str, …
Test: TypeAlias = "Callable[[Validator, Place, Any, Evaluated], bool]"


@dataclass(frozen=True, slots=True)
class TestedKeyword:
    """A keyword's test of values of some types; a late one needs what others evaluated."""

    test: Test
    types: frozenset[str]
    is_late: bool = False


class Validator:
    """Validates values against one document.

    Args:
        document: the schema.
        tests: the test of each keyword.
        asserts_formats: whether `format` asserts instead of annotating.
    """

    def __init__(
        self,
        document: Document,
        tests: Mapping[str, TestedKeyword],
        *,
        asserts_formats: bool = True,
    ) -> None:
        self.document, self.tests, self.asserts_formats = document, tests, asserts_formats

    def first_error(self, value: Json) -> str | None:
        """The pointer of the first keyword that a value breaks, None for a valid one."""
        return self.check(self.document.root, value, Evaluated())

    def is_valid(self, place: Place, value: Json, seen: Evaluated | None = None) -> bool:
        """Whether a value is valid; what was evaluated is added to `seen` only if it is."""
        inner = Evaluated()
        if self.check(place, value, inner) is not None:
            return False
        if seen is not None:
            seen.add(inner)
        return True

    def check(self, place: Place, value: Json, seen: Evaluated) -> str | None:
        """The pointer of the first keyword that a value breaks."""
        schema = place.schema
        if isinstance(schema, bool):
            return None if schema else place.pointer or "/"
        if self.document.ignores_siblings and "$ref" in schema:
            target = self.document.resolve(place, schema["$ref"])
            return None if self.is_valid(target, value, seen) else f"{place.pointer}/$ref"
        kind = type_of(value)
        tested = [(k, self.tests[k]) for k in schema if k in self.tests]
        for keyword, found in sorted(tested, key=lambda pair: pair[1].is_late):
            if kind in found.types and not found.test(self, place, value, seen):
                return f"{place.pointer}/{keyword}"
        return None


def checker(validator: Validator) -> Callable[[Json], None]:
    """A function that raises a ConstraintError for a value that the whole schema refuses."""

    def check(value: Json) -> None:
        try:
            broken = validator.first_error(value)
        except ConstraintError:
            return  # a pattern that cannot be followed is listed among the ignored keywords
        if broken is not None:
            raise ConstraintError(
                f"the text breaks #{broken}, which strict=False left out of the masks"
            )

    return check
