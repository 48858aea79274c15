"""Random schemas sampled at temperature 2 from random logits always validate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixlang.constraints.specs import Grammar, JsonSchema, Regex, match
from radixlang.errors import ConstraintError
from radixlang.runtime.constraints import compiled as constraints

NAMES = ["a", "b", "name", "é"]
SCALARS = st.one_of(
    st.sampled_from([{"type": t} for t in ("string", "integer", "number", "boolean", "null")]),
    st.builds(lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
              st.integers(-50, 50), st.integers(0, 100)),
    st.builds(lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
              st.integers(0, 3), st.integers(0, 5)),
    st.lists(st.sampled_from(["x", "yy", 1, 2, None, True, "a b"]), min_size=1, max_size=4,
             unique_by=repr).map(lambda values: {"enum": values}),
    st.sampled_from([{"type": "string", "pattern": "^[a-c]{1,3}$"},
                     {"type": "string", "format": "date"}, {"const": "é"},
                     {"not": {"type": ["array", "object", "number"]}}]),
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """Time for a machine that stands still for a second; what is slow is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraints, "MAX_COMPILE_S", 30.0)
        yield


def _object(parts: dict[str, Any], required: int, more: bool) -> dict[str, Any]:
    names = list(parts)
    return {"type": "object", "properties": parts, "required": names[: required % 4],
            "additionalProperties": more}  # fmt: skip


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(_object, st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
                  st.integers(0, 3), st.booleans()),
        st.builds(lambda items, n: {"type": "array", "items": items, "minItems": n,
                                    "maxItems": n + 2}, inner, st.integers(0, 2)),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"oneOf": parts}),
        st.builds(lambda test, then: {"if": test, "then": then}, inner, inner),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"allOf": parts}),
    )  # fmt: skip


def sample(compiled: Any, seed: int, max_tokens: int = 60) -> str:
    """One text at temperature 2 from random logits, closed where it grows long."""
    rng, matcher = np.random.default_rng(seed), compiled.matcher()
    ends = compiled.vocabulary.eos_token_ids
    for _ in range(max_tokens):
        if matcher.is_finished:
            break
        bits = np.unpackbits(matcher.allowed_row().view(np.uint8), bitorder="little")
        logits = rng.normal(0, 2, len(bits)) / 2 + rng.gumbel(size=len(bits))
        token = int(np.where(bits, logits, -np.inf).argmax())
        if token in ends:
            break
        matcher.consume([token])
    return matcher.text_bytes().decode("utf-8", "ignore") + compiled.close(matcher.text_bytes())


@settings(max_examples=1400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.recursive(SCALARS, _compound, max_leaves=8), st.integers(0, 2**32))
def test_samples_of_random_schemas_validate(compiler: Any, schema: Any, seed: int) -> None:
    try:
        compiled = compiler.compile(JsonSchema.of(schema, whitespace=2))
    except ConstraintError:
        return  # a complement that is refused, or a schema that no value satisfies
    text = sample(compiled, seed)
    validator = jsonschema.Draft202012Validator
    jsonschema.validate(
        json.loads(text), schema, validator, format_checker=validator.FORMAT_CHECKER
    )


GARBAGE = st.text("start:|()[]{}*+?\"'/\\~.,%\n aAbB01!^$#<>=-&é", max_size=60)


def _verdict(spec: Any) -> str:
    try:
        return match(spec, "a").status
    except ConstraintError as error:
        return str(error)


@settings(max_examples=400, deadline=None)
@given(GARBAGE)
def test_garbage_never_crashes(text: str) -> None:
    assert _verdict(Grammar(f"start: {text}"))
    assert _verdict(Grammar(text))
    assert _verdict(Regex(text))


KEYWORDS = [
    "type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$defs", "$id",
    "$anchor", "$dynamicRef", "$recursiveRef", "$schema", "properties", "patternProperties",
    "additionalProperties", "propertyNames", "required", "minProperties", "maxProperties",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties",
    "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "minContains",
    "maxContains", "minItems", "maxItems", "uniqueItems", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
    "format", "x-guidance",
]  # fmt: skip
WRONG = [
    None, True, False, 0, -1, 2.5, 1e300, 10**400, "", "a", "#",
    "#/$defs/x", [], [1], [None], ["a"], [[]], [{}], {}, {"a": 1}, {"a": {}}, {"a": [1]},
    {"type": False},
]  # fmt: skip


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_no_value_of_a_keyword_crashes(keyword: str) -> None:
    for value in WRONG:
        schema = {keyword: value}
        for around in (
            schema,
            {"items": schema},
            {"not": schema},
            {"oneOf": [schema, {"type": "object"}]},
            {"if": schema, "then": schema},
            {"type": "array", "uniqueItems": True, "maxItems": 2, "items": schema},
        ):
            assert _verdict(JsonSchema.of(around, strict=True))
            assert _verdict(JsonSchema.of(around, strict=False))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-5, 5) | st.text("#/$ab", max_size=4)
    | st.sampled_from(["string", "object", "array", "#", "#/$defs/a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "properties", "items", "anyOf", "oneOf", "not", "if", "then",
                         "required", "enum", "const", "$ref", "$defs", "a", "minLength", "pattern",
                         "additionalProperties", "uniqueItems", "dependentRequired", "format",
                         "patternProperties", "propertyNames", "contains", "$id", "prefixItems",
                         "unevaluatedProperties", "dependentSchemas", "maxItems", "multipleOf"]),
        inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from(["type", "properties", "anyOf", "not", "oneOf", "$ref",
                                        "items", "if", "then", "$defs", "unevaluatedItems"]),
                       JSON, min_size=1, max_size=4), st.booleans())  # fmt: skip
def test_malformed_schemas_never_crash(schema: Any, strict: bool) -> None:
    assert _verdict(JsonSchema.of(schema, strict=strict))
