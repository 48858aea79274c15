"""Formats: what the engine asserts, what a pattern or a range says as well, and the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixlang.runtime.constraints.schema.reading import Place

if TYPE_CHECKING:
    from radixlang.runtime.constraints.schema.rewriting import Rewriter

NATIVE = frozenset([
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
])  # fmt: skip

_POINTER = "(?:/(?:[^/~]|~0|~1)*)*"
_CHAR = "(?:[A-Za-z0-9\\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})"
PATTERNS = {
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
    # RFC 3986, section 4.1, without IP literals
    "uri-reference": (
        f"^(?:[A-Za-z][A-Za-z0-9+\\-.]*:)?(?://{_CHAR}*)?(?:/|{_CHAR}|%[0-9A-Fa-f]{{2}})*"
        f"(?:\\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?$"
    ),
    "byte": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
RANGES = {
    "int32": {"minimum": -(2**31), "maximum": 2**31 - 1},
    # eighteen digits: the engine's ranges end before 64 bits do
    "int64": {"minimum": -(10**18) + 1, "maximum": 10**18 - 1},
}
SAYS_NOTHING = frozenset(["float", "double", "decimal", "password", "textarea", "text", "binary"])


def rewrite_format(rewriter: Rewriter, place: Place, out: dict[str, Any]) -> dict[str, Any]:
    """Keywords that assert a format.

    Raises:
        RefusedKeywordError: a format that is not known.
    """
    name = place.schema["format"]
    types = rewriter.knowledge.types(place)
    if name in SAYS_NOTHING or (name in RANGES and not types & {"integer", "fraction"}):
        return {}
    if name in RANGES:
        return _narrowed(RANGES[name], out)
    if "string" not in types:
        return {}
    if name in NATIVE:
        return {"format": name}
    if name in PATTERNS and "pattern" not in out:
        return {"pattern": PATTERNS[name]}
    raise rewriter.refuse(place, "format", f"the format {name!r} is not known here")


def _narrowed(bounds: dict[str, int], out: dict[str, Any]) -> dict[str, Any]:
    """Bounds of a format where the schema itself has none on that side."""
    taken = {"minimum": {"minimum", "exclusiveMinimum"}, "maximum": {"maximum", "exclusiveMaximum"}}
    return {side: value for side, value in bounds.items() if not taken[side] & out.keys()}
