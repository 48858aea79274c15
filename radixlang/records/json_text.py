"""JSON text that every file and terminal can hold, and its lines.

A line ends at "\\n" only: U+2028, U+2029 and U+0085 are characters of a string. A lone surrogate,
which UTF-8 cannot encode, is written as its escape.
"""

from __future__ import annotations

import json


def dump_json(data: object, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON text that UTF-8 can encode."""
    text = json.dumps(data, ensure_ascii=False, indent=indent, sort_keys=sort_keys)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, ensure_ascii=True, indent=indent, sort_keys=sort_keys)
    return text


def json_lines(text: str) -> list[str]:
    """The lines of a JSON-lines text; text after the last line end is one more, if not empty."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]
