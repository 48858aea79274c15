"""Properties of objects: their values, their names, and dependencies between them."""

from __future__ import annotations

from collections.abc import Iterator

from radixlang.errors import UnsupportedConstraintError
from radixlang.json_types import JsonObject, Schema, Subschema
from radixlang.runtime.constraints.schema.keywords.counts import count_keywords
from radixlang.runtime.constraints.schema.keywords.entry import (
    DEPENDENCIES,
    NAMES,
    NAMES_BY_NAME,
    OBJECTS,
    SCHEMA,
    SCHEMAS_BY_NAME,
    Keyword,
)
from radixlang.runtime.constraints.schema.keywords.formats import FORMATS
from radixlang.runtime.constraints.schema.keywords.unevaluated import write_unevaluated
from radixlang.runtime.constraints.schema.patterns import engine_regex
from radixlang.runtime.constraints.schema.reading import ALL_TYPES, Form, Place
from radixlang.runtime.constraints.schema.rewriting import (
    Complement,
    KeywordWriter,
    Rewriter,
    all_of,
    any_of,
)
from radixlang.runtime.constraints.schema.search import occurs
from radixlang.runtime.constraints.schema.validation import Evaluated, Test, Validator

MAX_PROPERTY_PAIRS = 6_000_000  # the engine takes 0.1 us for each, and cannot be stopped


def _write_required(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    out["required"] = place.schema["required"]
    return []


def _without_one(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    for name in place.schema["required"]:
        yield {"type": "object", "properties": {name: False}}


def _write_properties(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    names = place.schema["properties"]
    out["properties"] = {name: rewriter.schema(place.at("properties", name)) for name in names}
    rewriter.num_property_pairs += len(names) ** 2
    if rewriter.num_property_pairs > MAX_PROPERTY_PAIRS:
        raise UnsupportedConstraintError(
            f"#{place.pointer}/properties: too complex; objects with 2,400 properties in one, "
            "or as many in several, are the most"
        )
    return []


def _other_property(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    for name in place.schema["properties"]:
        wrong = rewriter.complement(place.at("properties", name), ALL_TYPES)
        if wrong:
            yield {"type": "object", "properties": {name: any_of(wrong)}, "required": [name]}


def _test_properties(
    validator: Validator, place: Place, value: JsonObject, seen: Evaluated
) -> bool:
    names = [name for name in place.schema["properties"] if name in value]
    seen.names.update(names)
    return all(validator.is_valid(place.at("properties", n), value[n]) for n in names)


def _write_patterns(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    found: Schema = {}
    for source in place.schema["patternProperties"]:
        with rewriter.naming(place, "patternProperties"):
            regex = engine_regex(source)
        body = rewriter.schema(place.at("patternProperties", source))
        found[regex] = all_of([found[regex], body]) if regex in found else body
    out["patternProperties"] = found
    return []


def _test_patterns(validator: Validator, place: Place, value: JsonObject, seen: Evaluated) -> bool:
    for source in place.schema["patternProperties"]:
        names = [name for name in value if occurs(source, name)]
        seen.names.update(names)
        where = place.at("patternProperties", source)
        if not all(validator.is_valid(where, value[name]) for name in names):
            return False
    return True


def _write_additional(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    out["additionalProperties"] = rewriter.schema(place.at("additionalProperties"))
    return []


def _test_additional(
    validator: Validator, place: Place, value: JsonObject, seen: Evaluated
) -> bool:
    patterns = place.schema.get("patternProperties", {})
    named = place.schema.get("properties", {})
    rest = [n for n in value if n not in named and not any(occurs(p, n) for p in patterns)]
    seen.names.update(rest)
    return all(validator.is_valid(place.at("additionalProperties"), value[n]) for n in rest)


# propertyNames


def _write_names(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    """propertyNames with a list of names, a pattern or a length."""
    names = place.at("propertyNames")
    if names.schema in (True, {}):
        return []
    if names.schema is False:
        return [{"maxProperties": 0}]
    values = rewriter.knowledge.values(names)
    if values is not None:
        allowed = [v for v in values if isinstance(v, str)]
        return [{"properties": dict.fromkeys(allowed, True), "additionalProperties": False}]
    return [_fitting(rewriter, place, names)]


def _fitting(rewriter: Rewriter, place: Place, names: Place) -> Schema:
    said = names.schema.keys() - {"type", "description", "title", "$comment"}
    if not said or said - {"pattern", "format", "minLength", "maxLength"}:
        raise rewriter.refuse(place, "propertyNames", "only a list, a pattern or a length of names")
    if place.schema.get("properties") or place.schema.get("patternProperties"):
        raise rewriter.refuse(
            place, "propertyNames", "a pattern of names together with named properties"
        )
    rest = place.schema.get("additionalProperties", True)
    body = rewriter.schema(place.at("additionalProperties")) if rest is not True else True
    with rewriter.naming(place, "propertyNames"):
        regex = engine_regex(_names_pattern(names.schema, rewriter.asserts_formats))
    return {"patternProperties": {regex: body}, "additionalProperties": False}


def _names_pattern(schema: Schema, asserts_formats: bool) -> str:
    """One pattern for all restrictions of a name."""
    parts = [schema["pattern"]] if "pattern" in schema else []
    if "format" in schema and asserts_formats:
        found = FORMATS.get(schema["format"])
        if found is None or found.is_native:
            raise UnsupportedConstraintError(f"names of the format {schema['format']!r}")
        parts += [found.pattern] if found.pattern else []
    if {"minLength", "maxLength"} & schema.keys():
        most = "" if "maxLength" not in schema else int(schema["maxLength"])
        parts.append(f"^[^]{{{int(schema.get('minLength', 0))},{most}}}$")
    if len(parts) == 1:
        return str(parts[0])
    return "^" + "".join(f"(?=[^]*(?:{part}))" for part in parts)


def _test_names(validator: Validator, place: Place, value: JsonObject, seen: Evaluated) -> bool:
    return all(validator.is_valid(place.at("propertyNames"), name) for name in value)


# dependencies between properties


def _write_dependent(keyword: str) -> KeywordWriter:
    def write(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
        found: list[Subschema] = []
        for name, value in place.schema[keyword].items():
            needs: Subschema = {}
            if isinstance(value, list) and value:
                needs = {"required": [v for v in dict.fromkeys(value) if v != name] + [name]}
            elif not isinstance(value, list):
                body = rewriter.schema(place.at(keyword, name))
                needs = all_of([{"required": [name]}, body]) if body != {} else {}
            if needs != {} and value is not True:
                missing: Subschema = {"properties": {name: False}}
                found.append(any_of([way for way in (missing, needs) if way is not False]))
        return found

    return write


def _without_needed(rewriter: Rewriter, place: Place, types: frozenset[str]) -> Iterator[Subschema]:
    for name, needs in place.schema["dependentRequired"].items():
        for other in needs:
            if other != name:
                yield {"type": "object", "required": [name], "properties": {other: False}}


def _test_dependent(keyword: str) -> Test:
    def test(validator: Validator, place: Place, value: JsonObject, seen: Evaluated) -> bool:
        for name, needs in place.schema[keyword].items():
            if name not in value:
                continue
            if isinstance(needs, list):
                if not all(other in value for other in needs):
                    return False
            elif not validator.is_valid(place.at(keyword, name), value, seen):
                return False
        return True

    return test


def _dependent(keyword: str, form: Form, complement: Complement | None = None) -> Keyword:
    return Keyword(
        form, OBJECTS, _write_dependent(keyword), None, complement, _test_dependent(keyword)
    )


# unevaluatedProperties


def _write_unevaluated(rewriter: Rewriter, place: Place, out: Schema) -> list[Subschema]:
    return write_unevaluated(rewriter, place, "unevaluatedProperties")


def _test_unevaluated(
    validator: Validator, place: Place, value: JsonObject, seen: Evaluated
) -> bool:
    rest = [name for name in value if name not in seen.names]
    seen.names.update(rest)
    return all(validator.is_valid(place.at("unevaluatedProperties"), value[n]) for n in rest)


KEYWORDS = {
    **count_keywords("Properties", "object"),
    "required": Keyword(
        NAMES, OBJECTS, _write_required, None, _without_one,
        lambda v, place, value, seen: all(name in value for name in place.schema["required"]),
    ),
    "properties": Keyword(
        SCHEMAS_BY_NAME, OBJECTS, _write_properties, None, _other_property, _test_properties
    ),
    "patternProperties": Keyword(
        SCHEMAS_BY_NAME, OBJECTS, _write_patterns, test=_test_patterns
    ),
    "additionalProperties": Keyword(SCHEMA, OBJECTS, _write_additional, test=_test_additional),
}  # fmt: skip
LATE_KEYWORDS = {
    "dependentRequired": _dependent("dependentRequired", NAMES_BY_NAME, _without_needed),
    "dependentSchemas": _dependent("dependentSchemas", SCHEMAS_BY_NAME),
    "dependencies": _dependent("dependencies", DEPENDENCIES),
    "propertyNames": Keyword(SCHEMA, OBJECTS, _write_names, test=_test_names),
    "unevaluatedProperties": Keyword(
        SCHEMA, OBJECTS, _write_unevaluated, test=_test_unevaluated, is_late=True
    ),
}
