"""JSON schemas by pydantic's own generator, made exact: pydantic reads every text they allow.

Some of pydantic's schemas allow more: a date is `format: date`, an integer key is any key, a
Decimal is any string. Here each is the pattern of the texts that pydantic reads. This module
imports pydantic; `pydantic_types` loads it when it meets one of pydantic's types.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pydantic
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema as core

from radixlang.constraints import text_patterns as patterns
from radixlang.constraints.types.pydantic_checks import check_core_schema
from radixlang.constraints.types.rust_patterns import ecma_pattern
from radixlang.constraints.types.schema_parts import keyed_object, mapped_schema
from radixlang.errors import InvalidConstraintError
from radixlang.json_types import Schema, TypeForm

_FORMATS: dict[str, str | None] = {
    "ipv4": patterns.IPV4,
    "ipv6": patterns.IPV6,
    "ipvanyaddress": f"(?:{patterns.IPV4}|{patterns.IPV6})",
    "ipv4network": patterns.IPV4_NETWORK,
    "ipv6network": patterns.IPV6_NETWORK,
    "ipvanynetwork": f"(?:{patterns.IPV4_NETWORK}|{patterns.IPV6_NETWORK})",
    "ipv4interface": patterns.IPV4_INTERFACE,
    "ipv6interface": patterns.IPV6_INTERFACE,
    "ipvanyinterface": f"(?:{patterns.IPV4_INTERFACE}|{patterns.IPV6_INTERFACE})",
    "base64": patterns.BASE64,
    "base64url": patterns.BASE64URL,
    "uuid": patterns.UUID,
    **{f"uuid{version}": patterns.uuid_version(version) for version in range(1, 9)},
    "email": patterns.EMAIL,
    "path": None,
    "password": None,
    "binary": None,
}
_MOST = 10**17  # the mask engine's integer ranges have less than eighteen digits
_REFUSED = {
    "regex": "a pattern", "zoneinfo": "a time zone", "fraction": "a Fraction",
    "file-path": "a file that exists", "directory-path": "a folder that exists",
    "json-string": "JSON inside a string",
    "name-email": "a name with an address",
}  # fmt: skip


def make_adapter(kind: TypeForm) -> pydantic.TypeAdapter[object]:
    """pydantic's TypeAdapter of a type.

    Raises:
        InvalidConstraintError: pydantic does not support the type.
    """
    made: Any = kind  # pydantic's own TypeForm is narrower: no alias, no function
    try:
        adapter: pydantic.TypeAdapter[object] = pydantic.TypeAdapter(made)
        adapter.rebuild(raise_errors=True) if hasattr(adapter, "rebuild") else None
    except Exception as error:  # a type's own hook is the user's code, and so is what it raises
        raise _refusal(kind, error) from error
    return adapter


def exact_schema(adapter: pydantic.TypeAdapter[object], kind: TypeForm) -> Schema:
    """The JSON schema of the texts that an adapter reads.

    Raises:
        InvalidConstraintError: something in the type cannot be enforced.
    """
    check_core_schema(adapter.core_schema, _name(kind))
    try:
        schema = adapter.json_schema(schema_generator=ExactSchemas)
    except (PydanticUserError, RuntimeError) as error:
        raise _refusal(kind, error) from error
    return mapped_schema(schema, functools.partial(_exact_format, _name(kind)))


def _refusal(kind: TypeForm, error: Exception) -> InvalidConstraintError:
    first = str(error).splitlines()[0]
    return InvalidConstraintError(
        f"{_name(kind)} has no JSON schema: {first}; give each field a type that JSON has"
    )


def _name(kind: TypeForm) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _exact_format(owner: str, schema: Schema) -> Schema:
    name = schema.get("format")
    if name in _REFUSED and schema.get("type") == "string":
        raise InvalidConstraintError(
            f"{owner}: {_REFUSED[name]} cannot be enforced while text is written; use str and "
            "check the value afterwards"
        )
    if name not in _FORMATS:
        return schema
    pattern = _FORMATS[name]
    rest = {key: part for key, part in schema.items() if key not in ("format", "writeOnly")}
    return rest if pattern is None else {"pattern": patterns.anchored(pattern), **rest}


def _text(pattern: str, **more: object) -> Schema:
    return {"type": "string", "pattern": patterns.anchored(pattern), **more}


class ExactSchemas(GenerateJsonSchema):
    """pydantic's generator, made exact. One method for each kind of core schema."""

    def date_schema(self, schema: core.DateSchema) -> Schema:
        return _text(patterns.DATE)

    def time_schema(self, schema: core.TimeSchema) -> Schema:
        return _text(patterns.TIME)

    def datetime_schema(self, schema: core.DatetimeSchema) -> Schema:
        zones = {"naive": patterns.NAIVE_DATETIME, "aware": patterns.AWARE_DATETIME}
        return _text(zones.get(str(schema.get("tz_constraint")), patterns.DATETIME))

    def timedelta_schema(self, schema: core.TimedeltaSchema) -> Schema:
        return _text(patterns.DURATION)

    def uuid_schema(self, schema: core.UuidSchema) -> Schema:
        version = schema.get("version")
        return _text(patterns.UUID if version is None else patterns.uuid_version(version))

    def url_schema(self, schema: core.UrlSchema) -> Schema:
        return self._url(schema, many_hosts=False)

    def multi_host_url_schema(self, schema: core.MultiHostUrlSchema) -> Schema:
        return self._url(schema, many_hosts=True)

    def _url(self, schema: core.UrlSchema | core.MultiHostUrlSchema, *, many_hosts: bool) -> Schema:
        most = {"maxLength": schema["max_length"]} if "max_length" in schema else {}
        return _text(patterns.url(schema.get("allowed_schemes"), many_hosts=many_hosts), **most)

    def float_schema(self, schema: core.FloatSchema) -> Schema:
        found = super().float_schema(schema)
        takes_all = schema.get("allow_inf_nan", getattr(self._config, "allow_inf_nan", True))
        return found if takes_all else _within(found)

    def decimal_schema(self, schema: core.DecimalSchema) -> Schema:
        """Text with all its digits; a number if it has bounds other than zero."""
        if not {"le", "lt", "multiple_of"} & schema.keys() and _is_zero(schema):
            return _text(_decimal_pattern(schema))
        found: Schema = {"type": "number"}
        keywords = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum",
                    "lt": "exclusiveMaximum", "multiple_of": "multipleOf"}  # fmt: skip
        bounds: Mapping[str, Any] = schema  # read by names that are variables
        found |= {keywords[key]: _number(bounds[key]) for key in keywords if key in bounds}
        if "max_digits" in schema or "decimal_places" in schema:
            found = self._decimal_in_digits(schema, found)
        return _within(found)

    def _decimal_in_digits(self, schema: core.DecimalSchema, found: Schema) -> Schema:
        places = schema.get("decimal_places", schema.get("max_digits", 0))
        if "multiple_of" in schema:
            raise InvalidConstraintError("a Decimal with multiple_of takes no limit of its digits")
        found["multipleOf"] = _number(10**-places) if places else 1
        if "max_digits" in schema:
            most = 10 ** (schema["max_digits"] - places) - 1
            found.setdefault("minimum", -most)
            found.setdefault("maximum", most)
        return found

    def bytes_schema(self, schema: core.BytesSchema) -> Schema:
        coding = getattr(self._config, "val_json_bytes", "utf8")
        lengths = {"min_length", "max_length"} & schema.keys()
        if coding == "utf8":
            if lengths:
                raise InvalidConstraintError(
                    "the length of bytes is not that of their text; drop the bounds, or use str"
                )
            return {"type": "string"}
        if lengths:
            raise InvalidConstraintError(f"bytes written in {coding} take no bounds of length")
        return _text(patterns.BASE64URL if coding == "base64" else "(?:[0-9a-fA-F]{2})*")

    def str_schema(self, schema: core.StringSchema) -> Schema:
        found = super().str_schema(schema)
        if "pattern" in found:
            found["pattern"] = ecma_pattern(found["pattern"])
        stripped = schema.get("strip_whitespace") or getattr(
            self._config, "str_strip_whitespace", False
        )
        if stripped and ("minLength" in found or "pattern" in found):
            # lengths are checked after stripping: allow only texts with nothing to strip
            bare = r"^(?:[^\s\u0085](?:[\s\S]*[^\s\u0085])?)?$"
            return {**found, "allOf": [{"pattern": bare}]} if "pattern" in found else {
                **found, "pattern": bare}  # fmt: skip
        if schema.get("ascii_only"):
            found = {**found, "allOf": [{"pattern": r"^[\x00-\x7f]*$"}]}
        return found

    def dict_schema(self, schema: core.DictSchema) -> Schema:
        keys, values = schema.get("keys_schema"), schema.get("values_schema")
        key = self._followed(self.generate_inner(keys)) if keys else {}
        value = self.generate_inner(values) if values else {}
        found = keyed_object(key, value, "a dict")
        if schema.get("min_length", 0) > 1:
            raise InvalidConstraintError(
                "a dict of two members or more may be written with one name twice; use a list"
            )
        if "min_length" in schema:
            found["minProperties"] = schema["min_length"]
        if "max_length" in schema:
            found["maxProperties"] = schema["max_length"]
        return found

    def _followed(self, schema: Schema) -> Schema:
        """A key's schema, looked up if pydantic refers to it by name, as for an Enum."""
        while "$ref" in schema:
            schema = self.get_schema_from_definitions(schema["$ref"]) or {}
        return schema

    def set_schema(self, schema: core.SetSchema) -> Schema:
        return self._set(super().set_schema(schema))

    def frozenset_schema(self, schema: core.FrozenSetSchema) -> Schema:
        return self._set(super().frozenset_schema(schema))

    def _set(self, found: Schema) -> Schema:
        """Items of a set are unique only if `minItems` needs it: else equal ones may merge."""
        if found.get("minItems", 0) < 2:
            found.pop("uniqueItems", None)
        if found.get("items", {}) == {}:
            found["items"] = {"type": ["string", "number", "boolean", "null"]}
        return found

    def tagged_union_schema(self, schema: core.TaggedUnionSchema) -> Schema:
        found = super().tagged_union_schema(schema)
        return {"anyOf": found.get("oneOf", found.get("anyOf", [])) or [found]}

    def model_schema(self, schema: core.ModelSchema) -> Schema:
        return _closed(super().model_schema(schema), schema)

    def dataclass_schema(self, schema: core.DataclassSchema) -> Schema:
        return _closed(super().dataclass_schema(schema), schema)

    def typed_dict_schema(self, schema: core.TypedDictSchema) -> Schema:
        return _closed(super().typed_dict_schema(schema), schema)


def _closed(found: Schema, schema: Mapping[str, object]) -> Schema:
    """Allow only the members that the class declares, unless it allows more."""
    if found.get("type") == "object" and not schema.get("root_model"):
        found.setdefault("additionalProperties", False)
    return found


def _within(found: Schema) -> Schema:
    """A number with a bound on each side, so that its digits cannot grow into infinity."""
    if not {"minimum", "exclusiveMinimum"} & found.keys():
        found["minimum"] = -_MOST
    if not {"maximum", "exclusiveMaximum"} & found.keys():
        found["maximum"] = _MOST
    return found


def _is_zero(schema: core.DecimalSchema) -> bool:
    return not (schema.get("ge") or schema.get("gt"))


def _number(value: int | float | Decimal) -> int | float:
    return int(value) if value == int(value) else float(value)


def _decimal_pattern(schema: core.DecimalSchema) -> str:
    """The pattern of a Decimal with its limits of digits, of any sign or from zero on."""
    sign = "" if "ge" in schema or "gt" in schema else "-?"
    if "max_digits" not in schema and "decimal_places" not in schema and "gt" not in schema:
        return sign + patterns.DECIMAL.removeprefix("-?")
    places = schema.get("decimal_places")
    digits = schema.get("max_digits", 28)
    fraction = digits - 1 if places is None else places
    whole = digits - (places or 0)
    return sign + _digits(whole, fraction, positive="gt" in schema, total=digits)


def _digits(whole: int, fraction: int, *, positive: bool, total: int) -> str:
    """Digits around a point: at most `whole` before it, `fraction` after it, `total` together."""
    options = []
    for before in range(0, max(whole, 0) + 1):
        after = min(fraction, total - max(before, 1)) if before else min(fraction, total)
        first = "0" if before == 0 else f"[1-9][0-9]{{{before - 1}}}"
        tail = rf"(?:\.[0-9]{{1,{after}}})?" if after > 0 else ""
        if before == 0 and positive:
            if after > 0:
                options += [rf"0\.0{{{n}}}[1-9][0-9]{{0,{after - n - 1}}}" for n in range(after)]
            continue
        options.append(first + tail)
    return f"(?:{'|'.join(options)})"
