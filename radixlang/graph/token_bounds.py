"""The most tokens that a constrained text can have, if its constraint bounds it.

The texts of choices, and of patterns that match few texts, are listed and counted. Any other
pattern without an unbounded repetition is bounded by its bytes, since a token has at least one
byte. JSON, grammars and patterns that ignore case have no bound.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any, TypeAlias

from radixlang.constraints.specs import Capture, Choices, Regex, Sequence

MAX_TEXTS = 256  # a pattern of more texts is bounded by its bytes
_PARSER = "re._parser" if sys.version_info >= (3, 11) else "sre_parse"
_MANY = 1 << 16  # as many repetitions bound nothing
_BYTES = 4  # of a character of UTF-8, at most

Argument: TypeAlias = Any  # of an operation of a parsed regex, which has no types in Python
Count = Callable[[str], int]
Texts = list[str] | None  # every text, or None if there are too many


def most_tokens(constraint: object, count: Count) -> int | None:
    """Most tokens of a text under a constraint; None if there is no bound.

    Args:
        constraint: a constraint, a part of a Sequence, or None.
        count: the number of tokens of a text.
    """
    if isinstance(constraint, str):
        return count(constraint)
    if isinstance(constraint, Capture):
        return most_tokens(constraint.constraint, count)
    if isinstance(constraint, Choices):
        return max(map(count, constraint.options))
    if isinstance(constraint, Regex):
        return _of_pattern(constraint.pattern, count)
    if isinstance(constraint, Sequence):
        return _sum(most_tokens(part, count) for part in constraint.parts)
    return None


def _of_pattern(pattern: str, count: Count) -> int | None:
    try:
        tree = importlib.import_module(_PARSER).parse(pattern)
        if tree.state.flags & re.IGNORECASE:
            return None  # a letter's other case may take more bytes than the letter
        texts = _texts(tree)
        return _num_bytes(tree) if texts is None else max(map(count, texts), default=0)
    except (ImportError, re.error, RecursionError):
        return None  # the runtime says what is wrong with it


def _sum(parts: Iterable[int | None]) -> int | None:
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


# -- the texts of a parsed pattern --------------------------------------------------------


def _texts(nodes: Argument) -> Texts:
    found = [""]
    for node in nodes:
        ends = _texts_of(node[0].name, node[1])
        if ends is None or len(found) * len(ends) > MAX_TEXTS:
            return None
        found = [text + end for text in found for end in ends]
    return found


def _texts_of(kind: str, value: Argument) -> Texts:
    if kind == "LITERAL":
        return [chr(value)]
    if kind == "IN":
        return _texts_of_set(value)
    if kind == "BRANCH":
        options = [_texts(option) for option in value[1]]
        found = [text for option in options if option is not None for text in option]
        return found if None not in options and len(found) <= MAX_TEXTS else None
    if kind == "SUBPATTERN":
        return None if value[1] or value[2] else _texts(value[3])
    if kind in ("MAX_REPEAT", "MIN_REPEAT") and value[1] <= 8:
        return _repeated(_texts(value[2]), value[0], value[1])
    return None


def _texts_of_set(items: Argument) -> Texts:
    if any(item[0].name not in ("LITERAL", "RANGE") for item in items):
        return None
    spans = [item[1] if item[0].name == "RANGE" else (item[1], item[1]) for item in items]
    if sum(high - low + 1 for low, high in spans) > MAX_TEXTS:
        return None
    return [chr(code) for low, high in spans for code in range(low, high + 1)]


def _repeated(texts: Texts, low: int, high: int) -> Texts:
    if texts is None or len(texts) ** high > MAX_TEXTS:
        return None
    return [
        "".join(each) for times in range(low, high + 1) for each in product(texts, repeat=times)
    ]


# -- the bytes of a parsed pattern --------------------------------------------------------


def _num_bytes(nodes: Argument) -> int | None:
    return _sum(_num_bytes_of(node[0].name, node[1]) for node in nodes)


def _num_bytes_of(kind: str, value: Argument) -> int | None:
    if kind == "LITERAL":
        return _width(value)
    if kind == "IN":
        return max(map(_num_bytes_in_set, value))
    if kind in ("NOT_LITERAL", "ANY"):
        return _BYTES
    if kind in ("AT", "ASSERT", "ASSERT_NOT"):
        return 0
    if kind == "BRANCH":
        options = [_num_bytes(option) for option in value[1]]
        return None if None in options else max(option or 0 for option in options)
    if kind == "SUBPATTERN":
        return None if value[1] or value[2] else _num_bytes(value[3])
    if kind == "ATOMIC_GROUP":
        return _num_bytes(value)
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and value[1] < _MANY:
        once = _num_bytes(value[2])
        return None if once is None else once * int(value[1])
    return None


def _num_bytes_in_set(item: Argument) -> int:
    kind, value = item[0].name, item[1]
    if kind in ("LITERAL", "RANGE"):
        return _width(value if kind == "LITERAL" else value[1])
    return _BYTES


def _width(code: int) -> int:
    return len(chr(code).encode("utf-8", "surrogatepass"))
