"""lark grammars lowered to the mask engine: rule by rule, with ignored text made explicit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

from lark.grammar import Rule

from radixlang.constraints.specs import Grammar
from radixlang.errors import (
    InvalidConstraintError,
)
from radixlang.runtime.constraints.grammar.finished_text import (
    FinishedText,
    ParseTree,
    check_outside,
)
from radixlang.runtime.constraints.grammar.loading import (
    LoadedGrammar,
    load,
)
from radixlang.runtime.constraints.grammar.terminals import (
    LoweredTerminals,
    ignored_text,
    lower_terminals,
)
from radixlang.runtime.constraints.grammar.unbounded import may_force
from radixlang.runtime.constraints.regex.pattern import NOTHING, Pattern, to_terminal

NO_FORCING = '%llguidance {"no_forcing": true}'

Expansion = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoweredGrammar:
    """A grammar lowered to the engine.

    Args:
        text: the engine's grammar.
        forces: whether the engine can be asked for forced text.
        warnings: conditions that the masks do not enforce.
        check: raises a ConstraintError for a finished text that lark itself cannot parse; None if
            its lexer may take unbounded time and the masks enforce everything.
        parse: lark's tree of a finished text.
        captures: the text of each captured rule.
    """

    text: str
    forces: bool
    warnings: tuple[str, ...]
    check: Callable[[str], None] | None
    parse: Callable[[str], ParseTree]
    captures: Callable[[str], dict[str, str]]


def lower_grammar(spec: Grammar) -> LoweredGrammar:
    """Lower a lark grammar to the engine.

    Raises:
        InvalidConstraintError: lark refuses the grammar.
        UnsupportedConstraintError: a construct cannot be lowered; the message has name and place.
    """
    loaded = load(spec)
    terminals = lower_terminals(loaded)
    writer = _Writer(loaded, terminals)
    parser = FinishedText(loaded)
    check = partial(check_outside, spec) if loaded.slow else parser.check
    return LoweredGrammar(
        "\n".join(writer.lines()),
        writer.forces,
        tuple(terminals.warnings),
        None if loaded.slow and not terminals.warnings else check,
        parser.tree,
        parser.captures,
    )


class _Writer:
    """Writes the engine's grammar; names are numbered, so that they cannot clash."""

    def __init__(self, loaded: LoadedGrammar, terminals: LoweredTerminals) -> None:
        self.loaded, self.terminals = loaded, terminals
        self.names: dict[tuple[str, tuple[str, ...]], str] = {}
        self.rule_names: dict[str, str] = {}
        for rule in loaded.rules:
            self.rule_names.setdefault(str(rule.origin.name), f"rule{len(self.rule_names)}")
        ignored = [terminals.pattern(n, terminals.rivals(n, None)) for n in sorted(loaded.ignored)]
        self.blank, self.comment = ignored_text(ignored, loaded.spec.whitespace)
        self.has_gap = (self.blank, self.comment) != (NOTHING, NOTHING)
        self.rules: dict[str, list[Expansion]] = {n: [] for n in self.rule_names.values()}
        for rule in loaded.rules:
            self.rules[self.rule_names[str(rule.origin.name)]].append(self._expansion(rule))
        self._drop_endless()

    def _drop_endless(self) -> None:
        """Drop expansions that can never end, so that no mask leads into them."""
        ending: set[str] = set()
        while True:
            found = {n for n, es in self.rules.items() if any(_ends(e, ending) for e in es)}
            if found == ending:
                break
            ending = found
        if self.rule_names[self.loaded.spec.start] not in ending:
            raise InvalidConstraintError(
                f"rule {self.loaded.spec.start} can match no text: it never comes to an end"
            )
        kept = {n: [e for e in self.rules[n] if _ends(e, ending)] for n in ending}
        self.rules = {name: kept[name] for name in self.rules if name in kept}

    def lines(self) -> Iterator[str]:
        gap = "gap " if self.has_gap else ""
        if not self.forces:
            yield NO_FORCING
        yield f"start: {gap}{self.rule_names[self.loaded.spec.start]}"
        for name, expansions in self.rules.items():
            yield from self._rule(name, expansions)
        for own, pattern in self.patterns.items():
            yield f"{own}: {to_terminal(pattern)}"
        if gap:
            yield from self._gap()
        yield ""

    def _gap(self) -> Iterator[str]:
        """Blanks and comments as separate terminals: after ` /`, which may begin a comment or a
        division, a lexer does not return to the end of the blank."""
        blank = 'BLANK | ""' if self.blank != NOTHING else '""'
        if self.blank != NOTHING:
            yield f"BLANK: {to_terminal(self.blank)}"
        if self.comment == NOTHING:
            yield f"gap: {blank}"
            return
        yield f"COMMENT: {to_terminal(self.comment)}"
        yield f"blank: {blank}"
        yield "gap: blank | gap COMMENT blank"

    @cached_property
    def patterns(self) -> dict[str, Pattern]:
        """Each terminal of the engine's grammar."""
        return {own: self.terminals.pattern(*key) for key, own in self.names.items()}

    @cached_property
    def forces(self) -> bool:
        """Whether the engine may be asked for forced text, which it would not extend for ever."""
        return not any(map(may_force, [*self.patterns.values(), self.comment]))

    def _expansion(self, rule: Rule) -> Expansion:
        words: list[str] = []
        for index, symbol in enumerate(rule.expansion):
            if not symbol.is_term:
                words.append(self.rule_names[str(symbol.name)])
                continue
            words.append(self._terminal(str(symbol.name), (rule, index)))
            words.extend(["gap"] if self.has_gap else [])
        return tuple(words)

    def _terminal(self, name: str, place: tuple[Rule, int]) -> str:
        key = (name, self.terminals.rivals(name, place))
        return self.names.setdefault(key, f"TERM{len(self.names)}")

    def _rule(self, own: str, expansions: list[Expansion]) -> Iterator[str]:
        """A rule; recursion at its right end becomes a loop (A: x A | y is x* y)."""
        loops = [e[:-1] for e in expansions if len(e) > 1 and e[-1] == own and own not in e[:-1]]
        others = [e for e in expansions if own not in e]
        if loops and others and len(loops) + len(others) == len(expansions):
            yield f"{own}: {own}_loop {own}_end | {own}_end"
            yield f"{own}_loop: {_options(loops)} | {own}_loop ({_options(loops)})"
            yield f"{own}_end: {_options(others)}"
            return
        yield f"{own}: {_options(expansions)}"


def _ends(expansion: Expansion, ending: set[str]) -> bool:
    return all(word in ending or not word.startswith("rule") for word in expansion)


def _options(expansions: list[Expansion]) -> str:
    return " | ".join(" ".join(expansion) or '""' for expansion in expansions)
