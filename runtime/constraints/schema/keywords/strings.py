"""`pattern`, `format` and the length of strings."""

from __future__ import annotations

from collections.abc import Iterator

from radixlang.json_types import Schema, Subschema
from radixlang.runtime.constraints.schema.keywords.counts import count_keywords
from radixlang.runtime.constraints.schema.keywords.entry import STRINGS, TEXT, Keyword
from radixlang.runtime.constraints.schema.keywords.formats import (
    FORMATS,
    conforms,
    negated_format,
)
from radixlang.runtime.constraints.schema.patterns import engine_regex, engine_regexes
from radixlang.runtime.constraints.schema.reading import Place
from radixlang.runtime.constraints.schema.rewriting import Rewriter
from radixlang.runtime.constraints.schema.search import occurs
from radixlang.runtime.constraints.schema.validation import Evaluated, Validator


def _hold(regexes: tuple[str, ...], out: Schema) -> list[Subschema]:
    """Regexes that must all match; the first goes into the schema with the type, if it is free."""
    others = list(regexes)
    if "pattern" not in out:
        out["pattern"] = others.pop(0)
    return [{"pattern": regex} for regex in others]


def _write_pattern(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    with rewriter.naming(place, "pattern"):
        return _hold(engine_regexes(place.schema["pattern"]), out)


def _other_texts(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    if "\\p" in place.schema["pattern"].lower():  # a newer Unicode may have more characters
        raise rewriter.refuse(place, "pattern", "the complement of a property of Unicode")
    with rewriter.naming(place, "pattern"):
        regex = engine_regex(place.schema["pattern"], complement=True)
    yield {"type": "string", "pattern": regex}


def _occurs(validator: Validator, place: Place, value: str, seen: Evaluated) -> bool:
    return occurs(place.schema["pattern"], value)


def _write_format(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    if not rewriter.asserts_formats:
        return []
    name, types = place.schema["format"], rewriter.knowledge.types(place)
    found = FORMATS.get(name)
    if found is None:
        if "string" in types:
            raise rewriter.refuse(place, "format", f"the format {name!r} is not known here")
        return []
    if types & {"integer", "fraction"}:
        out |= _narrowed(dict(found.bounds), out)
    if "string" not in types:
        return []
    if found.is_native:
        out["format"] = name
    if found.pattern is None:
        return []
    with rewriter.naming(place, "format"):
        return _hold(engine_regexes(found.pattern), out)


def _narrowed(bounds: dict[str, int], out: Schema) -> Schema:
    """Bounds of a format, for sides on which the schema itself has none."""
    taken = {"minimum": {"minimum", "exclusiveMinimum"}, "maximum": {"maximum", "exclusiveMaximum"}}
    return {side: value for side, value in bounds.items() if not taken[side] & out.keys()}


def _not_of_format(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    if not rewriter.asserts_formats:
        return
    with rewriter.naming(place, "format"):
        found = negated_format(place.schema["format"])
    if found is not None:
        yield found


def _conforms(validator: Validator, place: Place, value: str, seen: Evaluated) -> bool:
    return not validator.asserts_formats or conforms(place.schema["format"], value)


KEYWORDS = {
    **count_keywords("Length", "string"),
    "pattern": Keyword(TEXT, STRINGS, _write_pattern, None, _other_texts, _occurs),
    "format": Keyword(TEXT, STRINGS, _write_format, None, _not_of_format, _conforms),
}
