"""Unicode properties as `\\p{…}` of ECMA 262 names them, by Python's own tables.

A newer Unicode may assign characters that are unassigned here: those are in no property and in no
complement of one, so that no text is accepted that a newer table refuses.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby

from radixlang.runtime.constraints.regex.pattern import (
    ANY_CHAR,
    MAX_CODE_POINT,
    Chars,
    chars,
    negate,
)

_LONG_NAMES = {
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt", "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M",
    "Combining_Mark": "M", "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me",
    "Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl",
    "Other_Number": "No", "Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi", "Final_Punctuation": "Pf", "Other_Punctuation": "Po",
    "Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk",
    "Other_Symbol": "So", "Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp", "Control": "Cc", "cntrl": "Cc", "Format": "Cf",
}  # fmt: skip
_SHORT_NAMES = frozenset(_LONG_NAMES.values())
_BINARY: dict[str, Callable[[str], bool]] = {
    "Lowercase": str.islower, "Lower": str.islower, "Uppercase": str.isupper,
    "Upper": str.isupper,
}  # fmt: skip
_SIMPLE = {
    "Any": ANY_CHAR,
    "ASCII": chars([(0, 127)]),
    **dict.fromkeys(("ASCII_Hex_Digit", "AHex"), chars([(48, 57), (65, 70), (97, 102)])),
    **dict.fromkeys(
        ("White_Space", "space"),
        chars([(9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
               (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)])),
}  # fmt: skip


@lru_cache(maxsize=64)
def property_characters(name: str) -> Chars | None:
    """The characters of a property; None for an unknown one."""
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name in _BINARY:
        holds = _BINARY[name]
        return chars((code, code) for code in range(MAX_CODE_POINT + 1) if holds(chr(code)))
    kind, equals, value = name.rpartition("=")
    if equals and kind not in ("General_Category", "gc"):
        return None
    category = _LONG_NAMES.get(value, value)
    if category not in _SHORT_NAMES:
        return None
    wanted = ("Lu", "Ll", "Lt") if category == "LC" else category
    return chars(pair for key, pair in _categories() if key.startswith(wanted))


@lru_cache(maxsize=1)
def _categories() -> tuple[tuple[str, tuple[int, int]], ...]:
    """Every run of characters of one general category."""
    found, low = [], 0
    for key, run in groupby(map(unicodedata.category, map(chr, range(MAX_CODE_POINT + 1)))):
        high = low + sum(1 for _ in run) - 1
        found.append((key, (low, high)))
        low = high + 1
    return tuple(found)


def assigned(body: Chars) -> Chars:
    """The characters of a set that are assigned in Python's tables or for private use."""
    unknown = chars(pair for key, pair in _categories() if key == "Cn")
    return negate(chars([*negate(body).ranges, *unknown.ranges]))
