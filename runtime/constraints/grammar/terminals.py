"""lark's terminals as patterns of exactly the texts that lark's own lexer takes for them.

A contextual lexer tries the terminals that a parser state accepts in a fixed order and takes the
first that matches. The texts of an earlier one are subtracted from the later one, for every pair
that a state accepts together.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from lark.grammar import Rule
from lark.lexer import PatternStr, TerminalDef
from lark.parsers.lalr_analysis import LALR_Analyzer

from radixlang.errors import UnsupportedConstraintError
from radixlang.runtime.constraints.grammar.error_location import locate, locate_symbol
from radixlang.runtime.constraints.grammar.loading import LoadedGrammar
from radixlang.runtime.constraints.regex.character_sets import first_characters
from radixlang.runtime.constraints.regex.pattern import (
    ANY_CHAR,
    ANY_TEXT,
    NOTHING,
    Alt,
    And,
    Cat,
    Chars,
    LiteralText,
    Not,
    Pattern,
    Repeat,
    alt,
    both,
    cat,
    repeat,
)
from radixlang.runtime.constraints.regex.python_regex import translate

MAX_PAIRS = 500_000  # a thousand terminals in one place

_BLANKS = frozenset(range(9, 14)) | {32, 0x85, 0xA0}


@dataclass(slots=True)
class LoweredTerminals:
    """Patterns of a grammar's terminals.

    Args:
        whole: the pattern of each terminal alone.
        losses: the texts that a terminal loses to another if a parser state accepts both.
        beside: by rule and place in it, the terminals that its parser states accept there.
        warnings: conditions that the masks do not enforce.
    """

    whole: dict[str, Pattern] = field(default_factory=dict)
    losses: dict[str, dict[str, Pattern]] = field(default_factory=dict)
    beside: dict[tuple[Rule, int], set[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def rivals(self, name: str, place: tuple[Rule, int] | None) -> tuple[str, ...]:
        """The terminals to which one loses texts at a place; None: at any place."""
        losses = self.losses.get(name, {})
        if place is None:
            return tuple(losses)
        return tuple(other for other in losses if other in self.beside.get(place, ()))

    def pattern(self, name: str, rivals: tuple[str, ...]) -> Pattern:
        """The texts that the lexer takes for a terminal rather than for its rivals."""
        if not rivals:
            return self.whole[name]
        return both(self.whole[name], Not(alt(*(self.losses[name][r] for r in rivals))))


def lower_terminals(loaded: LoadedGrammar) -> LoweredTerminals:
    """The patterns of all terminals of a grammar.

    Raises:
        UnsupportedConstraintError: masks cannot enforce a regex; the message has its place.
    """
    lowered = LoweredTerminals()
    loose: set[str] = set()  # terminals with a dropped condition on the text around them
    for terminal in loaded.terminals:
        pattern, dropped = _translate(loaded, terminal)
        lowered.whole[terminal.name] = pattern
        if dropped:
            loose.add(terminal.name)
            lowered.warnings.append(
                f"terminal {_shown(terminal)}: {', '.join(sorted(set(dropped)))} at its end is "
                "not in the masks; the finished text is checked by lark"
            )
    if loaded.lalr is not None:
        _subtract(loaded, lowered, loose)
    return lowered


def _translate(loaded: LoadedGrammar, terminal: TerminalDef) -> tuple[Pattern, list[str]]:
    pattern = terminal.pattern
    if isinstance(pattern, PatternStr) and not pattern.flags:
        return LiteralText(pattern.value), []
    try:
        found = translate(pattern.to_regexp(), whole=False)
    except UnsupportedConstraintError as error:
        reason = str(error).splitlines()[0].split(" (column")[0].split(", in the regex")[0]
        raise UnsupportedConstraintError(_place(loaded, terminal, reason)) from None
    return found.pattern, found.dropped


def _place(loaded: LoadedGrammar, terminal: TerminalDef, reason: str) -> str:
    message = f"terminal {_shown(terminal)}: {reason}"
    raw = getattr(terminal.pattern, "raw", None)
    if raw and raw in loaded.spec.text:
        return locate(loaded.spec.text, re.escape(raw), message)
    return locate_symbol(loaded.spec.text, terminal.name, message)


def _shown(terminal: TerminalDef) -> str:
    raw = getattr(terminal.pattern, "raw", None)
    return raw if raw and terminal.name.startswith("__") else str(terminal.name)


def _subtract(loaded: LoadedGrammar, lowered: LoweredTerminals, loose: set[str]) -> None:
    """Find the texts that each terminal loses to others that a state accepts with it."""
    order = sorted(
        loaded.terminals,
        key=lambda t: (-t.priority, -t.pattern.max_width, -len(t.pattern.value), t.name),
    )
    pairs = _accepted_together(loaded, lowered)
    for index, later in enumerate(order):
        for earlier in order[:index]:
            if frozenset((earlier.name, later.name)) in pairs:
                name, other, what = _loss(earlier, later, lowered.whole, loose)
                if what is not None:
                    lowered.losses.setdefault(name, {})[other] = what


def _accepted_together(
    loaded: LoadedGrammar, lowered: LoweredTerminals
) -> set[frozenset[str]]:  # fmt: skip
    """Pairs of terminals that one parser state accepts; ignored ones are accepted in all."""
    assert loaded.lalr is not None
    # untyped in lark; its debug mode keeps the items of each state
    analyzer: Any = LALR_Analyzer(loaded.lalr.parser.parser_conf, debug=True)
    analyzer.compute_lalr()
    pairs: set[frozenset[str]] = set()
    for items, actions in analyzer.parse_table.states.items():
        names = {str(getattr(symbol, "name", symbol)) for symbol in actions} | loaded.ignored
        for item in getattr(items, "closure", items):
            if not item.is_satisfied and item.next.is_term:
                lowered.beside.setdefault((item.rule, item.index), set()).update(names)
        is_small = math.comb(len(names), 2) <= MAX_PAIRS  # checked before any pair is made
        if is_small:
            pairs.update(map(frozenset, combinations(sorted(names), 2)))
        if not is_small or len(pairs) > MAX_PAIRS:
            raise UnsupportedConstraintError(
                f"the grammar has more than {MAX_PAIRS:,} pairs of terminals that may stand in one "
                "place; split its long lists of alternatives"
            )
    return pairs


def _loss(
    earlier: TerminalDef, later: TerminalDef, patterns: dict[str, Pattern], loose: set[str]
) -> tuple[str, str, Pattern | None]:
    """The terminal that loses, the one that wins, and the lost texts."""
    pair = _keyword_and_regex(earlier, later)
    if pair is not None and _takes_keyword(pair[1], pair[0].pattern.value):
        keyword, regex = pair  # lark renames such a token to the keyword
        return regex.name, keyword.name, patterns[keyword.name]
    first, second = patterns[earlier.name], patterns[later.name]
    if not _may_share_start(first, second):
        return later.name, earlier.name, None
    what = first if earlier.name in loose else cat(first, ANY_TEXT)
    return later.name, earlier.name, what


def _keyword_and_regex(
    earlier: TerminalDef, later: TerminalDef
) -> tuple[TerminalDef, TerminalDef] | None:
    if earlier.priority != later.priority:
        return None
    earlier_is_text = isinstance(earlier.pattern, PatternStr)
    if earlier_is_text == isinstance(later.pattern, PatternStr):
        return None
    return (earlier, later) if earlier_is_text else (later, earlier)


def _takes_keyword(regex: TerminalDef, keyword: str) -> bool:
    match = re.match(regex.pattern.to_regexp(), keyword)
    return match is not None and match.group(0) == keyword


def _may_share_start(left: Pattern, right: Pattern) -> bool:
    """Whether texts of both may begin alike; exact if one is a single text."""
    a, b = first_characters(left), first_characters(right)
    if isinstance(left, LiteralText) and isinstance(right, LiteralText):
        return right.value.startswith(left.value)
    return any(l1 <= h2 and l2 <= h1 for l1, h1 in a.ranges for l2, h2 in b.ranges)


def is_blank(pattern: Pattern) -> bool:
    """Whether a pattern matches only white space."""
    match pattern:
        case LiteralText(value):
            return value.isspace() or not value
        case Chars(ranges):
            return all(high - low < 64 and set(range(low, high + 1)) <= _BLANKS
                       for low, high in ranges if low < 0x100)  # fmt: skip
        case Cat(parts) | Alt(parts):
            return all(map(is_blank, parts))
        case Repeat(body, _, _):
            return is_blank(body)
        case And(left, right):
            return is_blank(left) or is_blank(right)
        case Not():
            return False


def ignored_text(patterns: list[Pattern], most: int) -> tuple[Pattern, Pattern]:
    """Ignored text between two tokens: at most `most` blanks in a row, and one comment."""
    blanks = alt(*(p for p in patterns if is_blank(p)))
    comments = alt(*(p for p in patterns if not is_blank(p)))
    limit = repeat(ANY_CHAR, 1, most)
    return both(repeat(blanks, 1, None), limit) if most else NOTHING, comments
