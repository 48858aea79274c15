"""The spelling of JSON that masks allow, for texts of other writers.

Masks write a character as itself if JSON allows it, and a whole number without a fraction. `match`
takes the spelling of `json.dumps`, such as `\\u00e9` and `0.0`, for the same text.
"""

from __future__ import annotations

import re

_STRING_OR_FRACTION = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=\d)\.0+(?![\d.eE])', re.DOTALL)
_ESCAPE = re.compile(
    r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL,
)  # fmt: skip
_SHORT = {8: r"\b", 9: r"\t", 10: r"\n", 12: r"\f", 13: r"\r", 34: r"\"", 92: r"\\"}
_WHOLE_FLOAT = re.compile(r"\d\.0+(?![\d.eE])")


def as_masks_write(text: str, schema: str) -> str:
    """A text with its strings in the masks' spelling, and its numbers too if a constant of the
    schema is a whole number with a fraction."""
    has_constant = _WHOLE_FLOAT.search(_STRING_OR_FRACTION.sub(_only_fraction, schema)) is not None

    def plain(match: re.Match[str]) -> str:
        if match[0][0] == '"':
            return _ESCAPE.sub(_unescaped, match[0])
        return "" if has_constant else match[0]

    return _STRING_OR_FRACTION.sub(plain, text)


def _only_fraction(match: re.Match[str]) -> str:
    return '""' if match[0][0] == '"' else match[0]


def _unescaped(match: re.Match[str]) -> str:
    high, low, code, other = match.groups()
    if high:
        return chr(0x10000 + (int(high, 16) - 0xD800) * 0x400 + int(low, 16) - 0xDC00)
    if other:
        return "/" if other == "/" else match[0]
    number = int(code, 16)
    if number in _SHORT:
        return _SHORT[number]
    is_itself = number >= 0x20 and number != 0x7F and not 0xD800 <= number <= 0xDFFF
    return chr(number) if is_itself else match[0]
