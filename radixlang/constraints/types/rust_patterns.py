"""pydantic's patterns, in the syntax of Rust's regex, translated to ECMA 262."""

from __future__ import annotations

import re

from radixlang.errors import InvalidConstraintError

_TOKEN = re.compile(
    r"\\.|\(\?(?:P?<[A-Za-z_]\w*>|[:=!]|<[=!]|[^)]*)|\[\[:|&&|--|~~|\[\^?|\]|.", re.DOTALL
)
# digits, words and blanks are Unicode's in Rust and ASCII's in ECMA 262
_WORDS = r"\w\p{L}\p{M}\p{N}\p{Pc}\u200c\u200dⒶ-ⓩ🄰-🅉🅐-🅩🅰-🆉"
_BLANKS = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# next to a word boundary only ASCII is allowed, on which both agree: exact sets take seconds
_EDGE = "[\\w\u0080-\U0010ffff]"
_BOUNDARY = rf"(?:(?<!{_EDGE})(?=\w)|(?<=\w)(?!{_EDGE}))"
_OUTSIDE = {
    r"\A": "^", r"\z": "$", r"\Z": "$", r"\b": _BOUNDARY,
    r"\D": r"[^\p{Nd}]", r"\W": f"[^{_WORDS}]", r"\S": r"[^\s\u0085]", r"\s": f"[{_BLANKS}]",
}  # fmt: skip
_IN_CLASS = {r"\s": _BLANKS}
_IN_NEGATED_CLASS = {r"\d": r"\p{Nd}", r"\w": _WORDS, r"\s": r"\s\u0085"}


def ecma_pattern(pattern: str) -> str:
    """A pattern with the same texts in ECMA 262's syntax.

    Raises:
        InvalidConstraintError: it uses something that the two read differently.
    """
    found, names = [], _OUTSIDE
    for token in _TOKEN.findall(pattern):
        in_class = names is not _OUTSIDE
        if in_class and token in ("[", "[^", "[[:", "&&", "--", "~~"):
            raise _refusal(pattern, token)
        if not in_class and (token in ("[[:", r"\B") or not _is_shared(token)):
            raise _refusal(pattern, token)
        found.append(names.get(token, token if in_class else token.replace("(?P<", "(?<")))
        if token in ("[", "[^"):
            names = _IN_CLASS if token == "[" else _IN_NEGATED_CLASS
        elif token == "]":
            names = _OUTSIDE
    return "".join(found)


def _is_shared(token: str) -> bool:
    """Whether both syntaxes know the token, if it opens a group with a question mark."""
    group = r"\(\?(?:[:=!]|<[=!]|P?<[A-Za-z_]\w*>)"
    return not token.startswith("(?") or re.fullmatch(group, token) is not None


def _refusal(pattern: str, token: str) -> InvalidConstraintError:
    return InvalidConstraintError(
        f"the pattern {pattern!r} has {token!r}, which JSON Schema's patterns do not; "
        "write it with plain classes and groups"
    )
