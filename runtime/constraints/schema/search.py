"""Searches a string for a pattern of a schema, in time linear in the string.

Python's own matcher backtracks, and a schema may be untrusted.
"""

from __future__ import annotations

import json
from functools import lru_cache

import llguidance

from radixlang.errors import UnsupportedConstraintError
from radixlang.runtime.constraints.regex.pattern import to_terminal
from radixlang.runtime.constraints.schema.patterns import string_pattern
from radixlang.runtime.constraints.vocabulary import Vocabulary


def occurs(pattern: str, text: str) -> bool:
    """Whether the pattern matches somewhere in the text.

    Raises:
        InvalidConstraintError, UnsupportedConstraintError: the pattern cannot be followed.
    """
    matcher = _matcher(pattern).deep_copy()
    data = list(text.encode("utf-8", "surrogatepass"))
    taken = matcher.try_consume_tokens(data)
    if matcher.is_error():
        raise UnsupportedConstraintError(f"the pattern {pattern!r:.80} is too complex")
    return taken == len(data) and bool(matcher.is_accepting())


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> llguidance.LLMatcher:
    whole = string_pattern(pattern)
    grammar = f"start: TEXT\nTEXT: {to_terminal(whole)}\n"
    top = json.dumps({"grammars": [{"name": "top", "lark_grammar": grammar}]})
    matcher = byte_vocabulary().matcher(top)
    if matcher.is_error():
        raise UnsupportedConstraintError(f"the pattern {pattern!r:.80} is too complex")
    return matcher


@lru_cache(maxsize=1)
def byte_vocabulary() -> Vocabulary:
    """The vocabulary with one token for each byte."""
    return Vocabulary.of_bytes()
