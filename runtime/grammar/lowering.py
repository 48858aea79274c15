"""lark grammars lowered to the mask engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from radixlang.constraints import Grammar


@dataclass(frozen=True, slots=True)
class LoweredGrammar:
    """A grammar in the engine's terms.

    Args:
        text: the engine's grammar.
        warnings: what the masks cannot see.
        check: raises for a finished text that lark does not parse.
        parse: lark's tree of a finished text.
        captures: the text of each rule that is to be bound.
    """

    text: str
    warnings: tuple[str, ...]
    check: Callable[[str], None]
    parse: Callable[[str], Any]
    captures: Callable[[str], dict[str, str]]


def lower_grammar(spec: Grammar) -> LoweredGrammar:
    raise NotImplementedError
