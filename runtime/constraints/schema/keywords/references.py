"""References, and the keywords that name their targets."""

from __future__ import annotations

from collections.abc import Iterator

from radixlang.json_types import Json, Schema, Subschema
from radixlang.runtime.constraints.schema.keywords.entry import (
    SCHEMA,
    SCHEMAS_BY_NAME,
    TEXT,
    Keyword,
)
from radixlang.runtime.constraints.schema.reading import ALL_TYPES, Place
from radixlang.runtime.constraints.schema.rewriting import KeywordWriter, Rewriter
from radixlang.runtime.constraints.schema.validation import Evaluated, Test, Validator


def _write_reference(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    return [rewriter.defined(rewriter.document.resolve(place, place.schema["$ref"]))]


def _other_reference(
    rewriter: Rewriter, place: Place, types: frozenset[str]
) -> Iterator[Subschema]:
    target = rewriter.document.resolve(place, place.schema["$ref"])
    yield from rewriter.complement(target, types)


def _write_dynamic(keyword: str) -> KeywordWriter:
    def write(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
        """A dynamic reference with only one possible target, as an ordinary one."""
        document, reference = rewriter.document, place.schema[keyword]
        anchors = [a for (_, a) in document.anchors if a == reference.lstrip("#")]
        if keyword == "$recursiveRef" or len(anchors) > 1 or len(document.resources) > 2:
            raise rewriter.refuse(place, keyword, "a reference that depends on the path to it")
        return [rewriter.defined(document.resolve(place, reference, keyword))]

    return write


def _test_reference(keyword: str) -> Test:
    def test(validator: Validator, place: Place, value: Json, seen: Evaluated) -> bool:
        target = validator.document.resolve(place, place.schema[keyword], keyword)
        return validator.is_valid(target, value, seen)

    return test


KEYWORDS = {
    "$ref": Keyword(
        TEXT, ALL_TYPES, _write_reference, None, _other_reference, _test_reference("$ref")
    ),
}
LATE_KEYWORDS = {
    "$dynamicRef": Keyword(
        TEXT, ALL_TYPES, _write_dynamic("$dynamicRef"), test=_test_reference("$dynamicRef")
    ),
    "$recursiveRef": Keyword(TEXT, ALL_TYPES, _write_dynamic("$recursiveRef")),
    **dict.fromkeys(("$anchor", "$dynamicAnchor", "$id", "$schema"), Keyword(TEXT)),
    **dict.fromkeys(("$defs", "definitions"), Keyword(SCHEMAS_BY_NAME)),
    "contentSchema": Keyword(SCHEMA),
}
