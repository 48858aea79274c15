"""Patterns of pydantic's, which Rust's regex reads, as ECMA 262 means them."""

from __future__ import annotations

import re

from radixlang.errors import InvalidConstraintError

_TOKEN = re.compile(
    r"\\.|\(\?(?:P?<[A-Za-z_]\w*>|[:=!]|<[=!]|[^)]*)|\[\[:|&&|--|~~|\[|\]|.", re.DOTALL
)
_ANCHORS = {r"\A": "^", r"\z": "$", r"\Z": "$"}


def ecma_pattern(pattern: str) -> str:
    """A pattern with the same texts in ECMA 262's syntax.

    Raises:
        InvalidConstraintError: it uses something that the two read differently.
    """
    found, in_class = [], False
    for token in _TOKEN.findall(pattern):
        if in_class and token in ("[", "[[:", "&&", "--", "~~"):
            raise _refusal(pattern, token)
        if token == "[[:" or (token.startswith("(?") and not in_class and not _is_shared(token)):
            raise _refusal(pattern, token)
        if token in ("[", "]"):
            in_class = token == "["
        found.append(_translated(token, in_class))
    return "".join(found)


def _is_shared(token: str) -> bool:
    """Whether both know this kind of group."""
    return re.fullmatch(r"\(\?(?:[:=!]|<[=!]|P?<[A-Za-z_]\w*>)", token) is not None


def _translated(token: str, in_class: bool) -> str:
    if in_class:
        return token
    return _ANCHORS.get(token, token.replace("(?P<", "(?<"))


def _refusal(pattern: str, token: str) -> InvalidConstraintError:
    return InvalidConstraintError(
        f"the pattern {pattern!r} has {token!r}, which JSON Schema's patterns do not; "
        "write it with plain classes and groups"
    )
