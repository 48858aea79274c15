"""JSON schemas: rewritten exactly, refused by pointer, or ignored by name and checked after."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from radixlang.constraints.specs import JsonSchema, match
from radixlang.errors import ConstraintError, InvalidConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints.compiled import byte_constraint
from radixlang.runtime.constraints.schema.keywords.table import KEYWORDS
from radixlang.runtime.constraints.schema.lowering import lower_schema

VALUES: list[Any] = [
    None, True, 0, 1, 7, -3, 1.5, "", "a", "ab", "foo", "é", [], [1], [1, 1], [1, 2], ["a", "b"],
    [True, False], {}, {"a": 1}, {"b": 1}, {"a": 1, "b": "x"}, {"a": "x"}, {"a": 1, "b": 2, "c": 3},
    {"kind": "x", "a": 1}, {"kind": "y", "b": 1}, {"kind": "y"}, {"x1": 1}, {"zz": 1},
    {"a": {"a": {"a": None}}}, [[], [[]]], {"kind": "x", "extra": 0},
]  # fmt: skip

REWRITTEN: dict[str, Any] = {
    "not_type": {"not": {"type": ["string", "null"]}},
    "not_enum": {"not": {"enum": ["foo", "a", 1, None]}},
    "not_required": {"type": "object", "not": {"required": ["a", "b"]}},
    "not_property": {"not": {"properties": {"a": {"const": 1}}, "required": ["a"]}},
    "not_range": {"type": "number", "not": {"minimum": 0, "maximum": 5}},
    "not_any_of": {"not": {"anyOf": [{"type": "object"}, {"maxLength": 1}]}},
    "not_not": {"not": {"not": {"type": "integer"}}},
    "forbidden": {"properties": {"a": {"not": {}}}},
    "empty_not_array": {"not": {"const": []}},
    "if_then_else": {
        "if": {"properties": {"kind": {"const": "x"}}, "required": ["kind"]},
        "then": {"required": ["a"]},
        "else": {"not": {"required": ["extra"]}},
    },
    "dependent_required": {"dependentRequired": {"b": ["a"]}},
    "dependencies": {"$schema": "http://json-schema.org/draft-07/schema#",
                     "dependencies": {"b": ["a"], "c": {"required": ["b"]}}},
    "dependent_schemas": {"dependentSchemas": {"kind": {"maxProperties": 1}}},
    "one_of_types": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    "one_of_overlapping": {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer",
                                                                       "maximum": 5}]},
    "one_of_required": {"type": "object", "properties": {"kind": {}, "a": {}, "b": {}},
                        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "one_of_tagged": {"oneOf": [
        {"type": "object", "properties": {"kind": {"const": k}, p: {}}, "required": ["kind", p]}
        for k, p in (("x", "a"), ("y", "b"))]},
    "unique_choice": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
    "unique_booleans": {"items": {"type": "boolean"}, "uniqueItems": True, "type": "array"},
    "unique_length": {"items": {"enum": [1, 2, 7]}, "uniqueItems": True, "minItems": 1,
                      "maxItems": 2},
    "unique_too_few": {"items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
    "unique_referred": {"items": {"$ref": "#/$defs/few", "enum": [1, 2, "a"]},
                        "$defs": {"few": {"enum": [2, 1, 1.0], "type": "integer"}},
                        "uniqueItems": True},
    "unique_narrowed": {"items": {"enum": [1, 2, "ab"], "maxLength": 1}, "uniqueItems": True},
    "names_listed": {"propertyNames": {"enum": ["a", "b"]}},
    "names_pattern": {"propertyNames": {"pattern": "^[a-z]$"}},
    "names_length": {"propertyNames": {"maxLength": 1}},
    "contains_bounded": {"type": "array", "maxItems": 2, "contains": {"const": 2}},
    "contains_nothing_wrong": {"contains": {"type": "string"}, "minContains": 0},
    "unevaluated": {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
    "unevaluated_any_of": {
        "anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]},
                  {"properties": {"b": {"const": 1}}, "required": ["b"]}],
        "unevaluatedProperties": False},
    "unevaluated_items": {"prefixItems": [{"const": 1}], "unevaluatedItems": False},
    "recursive": {"type": "object", "additionalProperties": {"anyOf": [{"$ref": "#"},
                                                                     {"type": "null"}]}},
    "bundled": {"$ref": "http://example.org/item", "$defs": {
        "i": {"$id": "http://example.org/item", "$ref": "#n", "$defs": {
            "n": {"$anchor": "n", "type": "integer"}}}}},
    "old_tuple": {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"const": 1}],
                  "additionalItems": False},
    "old_siblings": {"$schema": "http://json-schema.org/draft-07/schema#",
                     "properties": {"a": {"$ref": "#/definitions/s", "maxLength": 0}},
                     "definitions": {"s": {"type": "string"}}},
    "old_siblings_of_a_choice": {"$schema": "http://json-schema.org/draft-07/schema#",
                                 "oneOf": [{"$ref": "#/definitions/i", "enum": ["x"]},
                                           {"type": "integer", "maximum": 5}],
                                 "definitions": {"i": {"type": "integer"}}},
    "old_unique": {"$schema": "http://json-schema.org/draft-07/schema#", "uniqueItems": True,
                   "items": {"$ref": "#/definitions/i", "enum": [1]},
                   "definitions": {"i": {"enum": [1, 2]}}},
    "draft4_bound": {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 0,
                     "exclusiveMinimum": True},
    "whole_counts": {"maxLength": 1.0, "maxItems": 1.0, "maxProperties": 1.0},
    "format_int32": {"type": "integer", "format": "int32"},
}  # fmt: skip


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten_schemas_allow_exactly_the_valid_values(name: str) -> None:
    schema = REWRITTEN[name]
    validator = jsonschema.validators.validator_for(schema)(schema)
    verdicts = set()
    for value in VALUES:
        valid = validator.is_valid(value)
        found = match(JsonSchema.of(schema), json.dumps(value, ensure_ascii=False))
        assert bool(found) == valid, (value, found)
        verdicts.add(valid)
    assert verdicts == {True, False} or name in ("contains_nothing_wrong", "format_int32")


REFUSED = [
    ({"properties": {"a": {"uniqueItems": True}}}, "#/properties/a/uniqueItems"),
    ({"items": {"contains": {"type": "null"}}}, "#/items/contains"),
    ({"anyOf": [{"type": "null"}, {"format": "shoe-size"}]}, "#/anyOf/1/format"),
    ({"type": "string", "not": {"format": "uri"}}, "#/not"),
    ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, "#/oneOf"),
    ({"$ref": "https://example.org/x.json"}, "#/$ref"),
    ({"$defs": {"a/b": {"type": "string", "pattern": "(a)\\1"}}, "$ref": "#/$defs/a~1b"},
     "#/$defs/a~1b/pattern"),
    ({"patternProperties": {"a": {"type": "null"}, "b": {"type": "string"}}},
     "#/patternProperties"),
    ({"$dynamicRef": "#n", "$defs": {"a": {"$id": "a", "$dynamicAnchor": "n"},
                                     "b": {"$id": "b", "$dynamicAnchor": "n"}}}, "#/$dynamicRef"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "pointer"), REFUSED, ids=[p for _, p in REFUSED])
def test_a_refusal_carries_the_pointer_of_its_keyword(schema: Any, pointer: str) -> None:
    with pytest.raises(UnsupportedConstraintError) as caught:
        match(schema, "null")
    assert str(caught.value).startswith(f"{pointer}: ")


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"type": "text"}, "#/type: 'text'"),
        ({"properties": {"a": {"minLength": -1}}}, "#/properties/a/minLength"),
        ({"maxItems": 1.5}, "#/maxItems"),
        ({"anyOf": []}, "#/anyOf"),
        ({"anyOf": [1]}, "#/anyOf/0"),
        ({"$ref": "#/$defs/none"}, "points to no schema"),
        ({"properties": [1]}, "#/properties"),
        ({"properties": {"a/b": 3}}, "#/properties/a~1b: a schema is"),
        ({"not": {"properties": [1]}}, "#/not/properties"),
        ({"items": {"multipleOf": False}}, "#/items/multipleOf: False is not a number above 0"),
        ({"multipleOf": -2}, "#/multipleOf"),
        ({"uniqueItems": "yes"}, "#/uniqueItems: 'yes' is not a boolean"),
        ({"contains": {}, "minContains": "a"}, "#/minContains"),
        ({"a": {"maximum": "b"}, "$ref": "#/a"}, "#/a/maximum"),
        ({"$ref": 1}, r"#/\$ref"),
        ({"required": "a"}, "#/required"),
        ({"type": "string", "pattern": "[a-"}, "#/pattern: .*a character class is not closed"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "#: no value.* incompatible types"),
        (
            {
                "properties": {"a": {"minimum": 5, "maximum": 1, "type": "integer"}},
                "required": ["a"],
                "type": "object",
            },
            r"#/properties/a: no value .* \(5\) is greater than maximum \(1\)",
        ),
        ({"$id": "http://[", "$ref": "x"}, "URI"),
        ({"$id": 1}, r"#/\$id"),
        (JsonSchema('{"const": 1e999}'), "1e999 is too large"),
        (JsonSchema("[]"), "#: a schema is"),
    ],
)
def test_a_wrong_schema_is_refused(schema: Any, what: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        match(schema, "null")
    assert re.search(what, str(caught.value))


def _ignored(schema: Any) -> tuple[str, ...]:
    text = JsonSchema.of(schema).schema
    return lower_schema(text, strict=False, whitespace=4, error_of=lambda body: "").ignored


def test_strict_false_names_what_it_ignores_and_checks_the_finished_text() -> None:
    schema = {
        "type": "object",
        "properties": {"xs": {"type": "array", "uniqueItems": True}},
        "required": ["xs"],
    }
    assert _ignored(schema) == ("#/properties/xs/uniqueItems",)
    lenient = JsonSchema.of(schema, strict=False)
    assert match(lenient, '{"xs": [1, 2]}')
    found = match(lenient, '{"xs": [1, 1]}')
    assert found.status == "rejected"
    assert "#/properties" in found.expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.3", "#/not"), ("0.35", ""), ("1e999", "too large"), ("7" * 5000, "cannot be checked")],
)
def test_strict_false_checks_numbers_as_they_are_written(text: str, expected: str) -> None:
    lenient = JsonSchema.of({"type": "number", "not": {"multipleOf": 0.1}}, strict=False)
    found = match(lenient, text)
    assert bool(found) == (not expected)
    assert expected in found.expected


def test_strict_false_leaves_out_the_count_and_not_the_properties() -> None:
    schema = {"type": "object", "minProperties": 2, "properties": {"a": {}, "b": {}, "c": {}},
              "additionalProperties": {"type": "null"}}  # fmt: skip
    lenient = JsonSchema.of(schema, strict=False)
    assert byte_constraint(lenient).ignored == ("#/minProperties",)
    assert match(lenient, '{"a": 1, "c": 2}')
    assert not match(lenient, '{"a": 1}')
    assert not match(lenient, '{"a": 1, "d": 2}')


def test_strict_false_keeps_the_options_of_one_of() -> None:
    schema = {"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}]}
    assert _ignored(schema) == ("#/oneOf",)
    lenient = JsonSchema.of(schema, strict=False)
    assert match(lenient, "4")
    assert not match(lenient, "5")
    assert not match(lenient, "6"), "valid under both: the check after the fact says so"


def test_a_hostile_pattern_is_checked_in_linear_time() -> None:
    schema = {"not": {"pattern": "^(x+x+)+y$"}, "type": "string"}
    assert match(JsonSchema.of(schema, strict=False), json.dumps("x" * 4000))


@pytest.mark.parametrize("whitespace", [0, 1, 24])
def test_blanks_between_tokens_are_bounded(whitespace: int) -> None:
    schema = JsonSchema.of({"type": "array", "items": {"type": "integer"}}, whitespace=whitespace)
    assert match(schema, "[1,2]")
    assert match(schema, "[1," + " " * whitespace + "2]")
    assert not match(schema, "[1," + " " * (whitespace + 1) + "2]")
    assert not match(schema, "[1]\n")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {str(i): {"type": "string"} for i in range(2000)}},
        {"enum": [f"value {i}" for i in range(5000)]},
        json.loads('{"items":' * 120 + "{}" + "}" * 120),
    ],
    ids=["wide", "long_enum", "deep"],
)
def test_large_schemas_work(schema: Any) -> None:
    assert match(schema, "[]" if "items" in schema else json.dumps(schema.get("enum", [{}])[-1]))


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (json.loads('{"items":' * 300 + "{}" + "}" * 300), "nested more than"),
        ({"enum": ["x" * 3_000_000]}, "characters"),
        ({"const": "x" * 10_000_000}, "characters"),
        ({"oneOf": [{"minLength": i, "maxLength": 2 * i} for i in range(1, 400)]}, "parts|complex"),
    ],
    ids=["deep", "long", "ten_megabytes", "exploding"],
)
def test_hostile_schemas_are_refused(schema: Any, what: str) -> None:
    with pytest.raises((UnsupportedConstraintError, InvalidConstraintError), match=what):
        match(schema, "null")


def test_formats_are_asserted_unless_they_are_taken_as_remarks() -> None:
    schema = {"type": "string", "format": "ipv4"}
    asserted, remark = JsonSchema.of(schema), JsonSchema.of(schema, formats="annotate")
    assert [bool(match(asserted, text)) for text in ('"1.2.3.4"', '"here"')] == [True, False]
    assert [bool(match(remark, text)) for text in ('"1.2.3.4"', '"here"', "1")] == [
        True, True, False,
    ]  # fmt: skip
    with pytest.raises(InvalidConstraintError, match="formats is"):
        JsonSchema.of(schema, formats="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "é"), ({"const": "😀 é\x7f"}, "😀 é\x7f"),
        ({"type": "string", "pattern": '^"é\\\\\\n$'}, '"é\\\n'),
        ({"properties": {"é": {"type": "null"}}, "additionalProperties": False}, {"é": None}),
        ({"enum": [0.0, 1.5]}, 0.0), ({"const": {"a": [2.0, "1.0"]}}, {"a": [2.0, "1.0"]}),
        ({"type": "string"}, "\\u00e9"),
    ],
)  # fmt: skip
def test_what_json_dumps_writes_is_matched(schema: Any, value: Any) -> None:
    for is_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=is_ascii)
        if "\x7f" not in text:  # the engine writes DEL as an escape
            assert match(schema, text), text


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"const": "é"}, '"\\u00e8"'), ({"type": "string", "pattern": "^[^/]+$"}, '"a\\/"'),
        ({"const": 0.0}, "0.1"), ({"const": 2.0}, '"2.0"'), ({"type": "string"}, '"\\ud800"'),
        ({"const": "2.0"}, '"2"'), ({"type": "string", "maxLength": 1}, '"\\u00e9\\u00e9"'),
    ],
)  # fmt: skip
def test_another_spelling_is_no_other_value(schema: Any, text: str) -> None:
    assert match(schema, text).status == "rejected"


@pytest.mark.parametrize("schema", [{"type": "integer"}, {"type": ["integer", "null"]},
                                    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                                    {"type": "integer", "minimum": 0}])  # fmt: skip
def test_digits_of_integers_are_bounded(schema: Any) -> None:
    assert match(schema, "9" * 18)
    found = match(schema, "9" * 40)
    assert (found.status, found.position) == ("rejected", 18)
    assert match({**schema, "maximum": 20, "type": "integer"}, "20")


def test_a_keyword_that_is_written_for_masks_can_be_checked_after_the_fact() -> None:
    """What strict=False leaves out is looked at in the finished text."""
    unchecked = {name for name, keyword in KEYWORDS.items() if keyword.write and not keyword.test}
    assert unchecked == {"$recursiveRef"}
    silent = {name for name, keyword in KEYWORDS.items() if keyword.refuses and not keyword.write}
    assert not silent


@pytest.mark.parametrize(
    ("names", "accepted", "rejected"),
    [
        ({"pattern": "^a", "maxLength": 2}, ["a", "ab"], ["abc", "b", ""]),
        ({"pattern": "b", "minLength": 3}, ["abc", "xxb"], ["b", "aaa"]),
        ({"format": "date"}, ["2024-02-29"], ["2023-02-29", "today"]),
        ({"minLength": 1, "maxLength": 1}, ["a", "é", "\n"], ["", "ab"]),
        ({"type": "string", "enum": ["a", "b"]}, ["a", "b"], ["c"]),
        ({"$ref": "#/$defs/k"}, ["x", "y"], ["z"]),
    ],
)
def test_names_are_held_to_all_that_is_said_of_them(
    names: Any, accepted: list[str], rejected: list[str]
) -> None:
    schema = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "null"},
              "$defs": {"k": {"enum": ["x", "y"]}}}  # fmt: skip
    for right, texts in ((True, accepted), (False, rejected)):
        for name in texts:
            assert bool(match(schema, json.dumps({name: None}, ensure_ascii=False))) == right, name
            assert not match(schema, json.dumps({name: 1}, ensure_ascii=False))
