"""Messages for templates that cannot be parsed: what was found, and what to write instead."""

from __future__ import annotations

import re

from radixlang.suggestions import suggestion

TAGS = ("adapter", "args", "elif", "else", "end", "for", "fork", "if", "include", "join", "raw",
        "role", "set", "system", "user", "assistant")  # fmt: skip
_SHOWN = {
    "_TAG_END": "%}", "_OUT_END": "}}", "_END": "{% end %}", "_JOIN": "{% join %}",
    "NAME": "a name", "STRING": "a string", "NUMBER": "a number", "EQUAL": "=",
}  # fmt: skip
_SIGNS = {
    "=": "= gives a value, and == compares",
    "&": "write and",
    "|": "write or; behind | stands a filter, default(…) or a format in quotes",
    "!": "write not",
    "(": "a template calls nothing; compute it in Python and give it as an argument",
    "{": "a template has no dicts; give one as an argument",
    **dict.fromkeys("+-*/%", "a template does not calculate; give the result as an argument"),
}


_MISPLACED = {
    "end": "{% end %} closes nothing: no block is open here; take it out",
    "join": "{% join %} closes nothing: no {% fork … %} is open here; take it out",
    "elif": "{% elif … %} belongs between an {% if … %} and its {% end %}",
    "else": "{% else %} belongs between an {% if … %} and its {% end %}",
    "raw": "{% raw %} has no {% endraw %}",
}
_WRITTEN = {"system": "{% system %}", "user": "{% user %}", "assistant": "{% assistant %}"}


def explained(error: Exception, text: str) -> tuple[str, int]:
    """A message for lark's UnexpectedInput, and its position in the text."""
    token = getattr(error, "token", None)
    wanted = set(getattr(error, "expected", None) or getattr(error, "allowed", None) or ())
    if token is not None and token.type == "$END":
        missing = _missing(wanted, in_output=text.rfind("{{") > text.rfind("{%"))
        return f"the file ends inside a tag or a block; {missing} is missing", len(text)
    position = int(getattr(error, "pos_in_stream", None) or 0)
    if text.startswith("{%", position):
        return _about_tag(text[position:], wanted), position
    return _inside_tag(text, position, wanted), position


def _missing(wanted: set[str], *, in_output: bool) -> str:
    closers = ("_OUT_END", "_TAG_END") if in_output else ("_TAG_END", "_OUT_END")
    for name in ("_END", "_JOIN", *closers):
        if name in wanted:
            return _SHOWN[name]
    return "its end"


def _about_tag(text: str, wanted: set[str]) -> str:
    """A message for a tag that does not exist, or is not allowed in this place."""
    words = re.match(r"\{%-?\s*(\w*)\s*(\w*)", text)
    name, second = words.groups() if words else ("", "")
    if text.startswith("{%-"):
        return "{%- is no tag; a tag alone on its line takes the line's blanks with it: write {%"
    written = "else if" if (name, second) == ("else", "if") else name
    if written in ("elseif", "elsif", "else if"):
        return f"there is no tag {written!r}; write {{% elif … %}}"
    if name == "end" and "_JOIN" in wanted and "_END" not in wanted:
        return "a fork ends with {% join … %}, which gathers its branches, not with {% end %}"
    if name.startswith("end") and name != "end":
        return f"there is no tag {name!r}; blocks end with {{% end %}}, a fork with {{% join %}}"
    if name not in TAGS:
        return f"there is no tag {name!r}; {suggestion(name, TAGS)}"
    return _MISPLACED.get(name, f"{{% {name} … %}} is written as {_WRITTEN.get(name, name)}")


def _inside_tag(text: str, position: int, wanted: set[str]) -> str:
    found = _word_at(text, position)
    said = f"unexpected {found!r}"
    tag = text[max(text.rfind("{{", 0, position), text.rfind("{%", 0, position), 0) : position]
    if found in ("'", '"'):
        return f"the string that begins here has no closing {found}"
    if re.match(r"\{\{\s*select\b", tag) and "COLON" in wanted:
        return f'{said}; options stand behind a colon: {{{{ select size: ["big", "small"] }}}}'
    if re.match(r"\{\{\s*gen\s*$", tag) and text[position] in "\"'":
        return f"{said}; the name of a gen stands without quotes: {{{{ gen answer }}}}"
    if found in _SIGNS:
        return f"{said}; {_SIGNS[text[position]]}"
    if "IN" in wanted and "NAME" not in wanted and re.match(r"\{%\s*for\b", tag):
        return f"{said}; write {{% for x in list %}}"
    if "COMMA" in wanted and re.match(r"[\w\"']", found):
        return f"a comma is missing before {found!r}"
    expected = [_SHOWN[name] for name in sorted(wanted) if name in _SHOWN]
    closers = [name for name in expected if name != ("%}" if tag.startswith("{{") else "}}")]
    return f"{said}; expected {', '.join(closers)}" if closers else said


def _word_at(text: str, position: int) -> str:
    found = re.compile(r"\w+|\"[^\"\n]*\"|'[^'\n]*'|[%}]}|.", re.DOTALL).match(text, position)
    return found.group() if found else ""
