"""Messages with their place in a grammar."""

from __future__ import annotations

import re


def locate(text: str, pattern: str, message: str) -> str:
    """The message with line, column and a caret at the first match of a regex in the grammar."""
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        return f"{message} (in an imported grammar)"
    start = match.start("at") if "at" in match.groupdict() else match.start()
    line_start = text.rfind("\n", 0, start) + 1
    line = text[line_start:].split("\n", 1)[0]
    number, column = text.count("\n", 0, start) + 1, start - line_start + 1
    return f"{message} (line {number}, column {column})\n  {line}\n  {' ' * (column - 1)}^"


def locate_symbol(text: str, name: str, message: str) -> str:
    """Like `locate`, at the definition of a rule or terminal, or else at its first use."""
    word = re.escape(name)
    defined = rf"^[ \t]*(?P<at>[?!]*{word})(?:\.-?\d+)?(?:\{{[^}}]*\}})?[ \t]*(?:\.-?\d+)?[ \t]*:"
    used = rf"(?<![\w])(?P<at>{word})(?!\w)"
    return locate(text, defined if re.search(defined, text, re.MULTILINE) else used, message)
