"""Formats: those that the engine asserts, those with a pattern or a range, and the rest.

One entry for each format. `match` and the masks agree on it; `strict=False` lists an unknown one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

import llguidance

from radixlang.constraints import text_patterns
from radixlang.errors import ConstraintError, UnsupportedConstraintError
from radixlang.json_types import Json, Schema
from radixlang.runtime.constraints.regex.ecma_regex import read_ecma
from radixlang.runtime.constraints.schema.patterns import engine_regex
from radixlang.runtime.constraints.schema.search import byte_vocabulary, occurs


@dataclass(frozen=True, slots=True)
class Format:
    """The definition of a format.

    Args:
        pattern: of strings; None if the engine asserts it or it does not restrict strings.
        is_native: the engine asserts it.
        is_exact: the pattern has all texts of the format, so that it has a complement.
        bounds: of numbers, by keyword.
    """

    pattern: str | None = None
    is_native: bool = False
    is_exact: bool = True
    bounds: tuple[tuple[str, int], ...] = ()

    @property
    def says_nothing_of_strings(self) -> bool:
        """Whether every string has the format."""
        return self.pattern is None and not self.is_native


def _of(body: str, *, is_exact: bool = True) -> Format:
    return Format(f"^(?:{body})$", is_exact=is_exact)


_TIME = (  # RFC 3339 without leap seconds, which Python's times do not have
    r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
)
_POINTER = "(?:/(?:[^/~]|~0|~1)*)*"
_UCS = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"  # of RFC 3987, in the basic plane
_LITERAL = rf"[!#$&()*+,\-./0-9:;=?@A-Z\[\]_a-z~{_UCS}]|%[\dA-Fa-f]{{2}}"
_NAME = r"(?:[A-Za-z0-9_]|%[\dA-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[\dA-Fa-f]{2}))*"
_VARIABLE = rf"{_NAME}(?:\*|:[1-9]\d{{0,2}})?"


def _references(more: str = "") -> tuple[str, str]:
    """Absolute and any references of RFC 3986, without IP literals; `more` are characters that
    RFC 3987 adds."""
    free = rf"[A-Za-z0-9\-._~!$&'()*+,;={more}]|%[0-9A-Fa-f]{{2}}"
    char, first = f"(?:{free}|[:@])", f"(?:{free}|@)"
    rest = f"(?:/{char}*)*"
    authority = rf"//(?:(?:{free}|:)*@)?(?:{free})*(?::\d*)?{rest}"
    rooted = f"/(?:{char}+{rest})?"
    tail = rf"(?:\?(?:{char}|[/?])*)?(?:#(?:{char}|[/?])*)?"
    scheme = r"[A-Za-z][A-Za-z0-9+\-.]*:"
    absolute = f"{scheme}(?:{authority}|{rooted}|{char}+{rest})?{tail}"
    relative = f"(?:{authority}|{rooted}|{first}+{rest})?{tail}"
    return absolute, f"(?:{absolute}|{relative})"


_IRI, _IRI_REFERENCE = _references(_UCS)
_INT32 = (("minimum", -(2**31)), ("maximum", 2**31 - 1))
_INT64 = (("minimum", -(10**18) + 1), ("maximum", 10**18 - 1))  # the engine's ranges end there

FORMATS: dict[str, Format] = {
    **dict.fromkeys(
        ("duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"), Format(is_native=True)),
    **dict.fromkeys(
        ("float", "double", "decimal", "password", "textarea", "text", "binary", "path",
         "json-string"), Format()),
    "date": _of(text_patterns.DATE),
    "time": _of(_TIME, is_exact=False),
    "date-time": _of(f"{text_patterns.DATE}[Tt]{_TIME}", is_exact=False),
    "json-pointer": _of(_POINTER),
    "relative-json-pointer": _of(rf"(?:0|[1-9]\d*)(?:#|{_POINTER})"),
    "uri-reference": _of(_references()[1], is_exact=False),
    "iri": _of(_IRI, is_exact=False),
    "iri-reference": _of(_IRI_REFERENCE, is_exact=False),
    "uri-template": _of(
        rf"(?:{_LITERAL}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*", is_exact=False),
    "byte": _of(text_patterns.BASE64),
    "base64": _of(text_patterns.BASE64),
    "base64url": _of(text_patterns.BASE64URL),
    **{f"uuid{n}": _of(text_patterns.uuid_version(n)) for n in range(1, 9)},
    "int32": Format(bounds=_INT32),
    "int64": Format(bounds=_INT64),
}  # fmt: skip


def negated_format(name: str) -> Schema | None:
    """Strings that are not of a format; None if there are none, or if a format of numbers does not
    restrict strings.

    Raises:
        UnsupportedConstraintError: masks cannot enforce it.
    """
    found = FORMATS.get(name)
    if found is None or found.is_native or found.bounds or not found.is_exact:
        raise UnsupportedConstraintError(f"texts that are not of the format {name!r}")
    if found.pattern is None:
        return None
    return {"type": "string", "pattern": engine_regex(found.pattern, complement=True)}


def conforms(name: str, value: Json) -> bool:
    """Whether a value is of a format; true for a format that is not known."""
    found = FORMATS.get(name, Format())
    if isinstance(value, str):
        if name == "regex":
            return _is_regex(value)
        if found.is_native:
            return _is_native(name, value)
        return found.pattern is None or occurs(found.pattern, value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        bounds = dict(found.bounds)
        return bounds.get("minimum", value) <= value <= bounds.get("maximum", value)
    return True


def _is_regex(text: str) -> bool:
    try:
        read_ecma(text)
    except ConstraintError:
        return False
    return True


def _is_native(name: str, text: str) -> bool:
    engine, data = _native(name).deep_copy(), json.dumps(text, ensure_ascii=False)
    bytes_of = list(data.encode("utf-8", "surrogatepass"))
    return engine.try_consume_tokens(bytes_of) == len(bytes_of) and engine.is_accepting()


@lru_cache(maxsize=16)
def _native(name: str) -> llguidance.LLMatcher:
    schema = {"type": "string", "format": name}
    return byte_vocabulary().matcher(json.dumps({"grammars": [{"json_schema": schema}]}))
