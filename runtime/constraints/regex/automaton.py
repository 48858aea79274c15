"""Regexes with assertions as automata, built one state at a time by derivatives.

A state is the expression that the rest of a text must match: a lookahead is a conjunction in it and
its negation a complement, so nothing backtracks (Brzozowski 1964). Conditions of a lookbehind, `^`
or `\\b` on the text before a place are tracked in separate states. Time is linear in the text, and
the number of expressions is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from radixlang.errors import UnsupportedConstraintError
from radixlang.runtime.constraints.regex.pattern import ANY_CHAR, Chars
from radixlang.runtime.constraints.regex.regex_tree import (
    ANYTHING,
    Ahead,
    Alphabet,
    Behind,
    Each,
    Either,
    Many,
    Tree,
    all_trees,
    is_nullable,
)

MAX_EXPRESSIONS = 40_000


@dataclass(frozen=True, slots=True, eq=False)
class Nothing:
    """No text."""


@dataclass(frozen=True, slots=True, eq=False)
class Anything:
    """Any text."""


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """The empty text."""


@dataclass(frozen=True, slots=True, eq=False)
class One:
    """A character of the classes, then the rest."""

    classes: int
    rest: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A repetition with its remaining counts, then the rest."""

    tree: Many
    least: int
    most: int | None
    rest: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The rest, if a lookbehind holds or (negative) does not."""

    number: int
    is_negative: bool
    rest: Expression


@dataclass(frozen=True, slots=True, eq=False)
class AnyOf:
    """Texts of any of the expressions."""

    parts: frozenset[Expression]


@dataclass(frozen=True, slots=True, eq=False)
class AllOf:
    """Texts of every one of the expressions."""

    parts: frozenset[Expression]


@dataclass(frozen=True, slots=True, eq=False)
class Except:
    """Every text that an expression does not match."""

    body: Expression


Expression: TypeAlias = "Nothing | Anything | End | One | Loop | Placed | AnyOf | AllOf | Except"
Holds: TypeAlias = "tuple[bool, ...]"  # of each lookbehind, at one place of a text
E = TypeVar("E")


class Automaton:
    """Expressions of one tree. Equal ones are one object.

    Every method raises an UnsupportedConstraintError if there are more than MAX_EXPRESSIONS.

    Attributes:
        alphabet: the classes of characters.
        start: the expression of a whole text.
        before: the expression of each lookbehind at the beginning of a text.
    """

    def __init__(self, tree: Tree) -> None:
        parts = list(all_trees(tree))
        sets = dict.fromkeys(part for part in parts if isinstance(part, Chars))
        self.alphabet = Alphabet.of(list(sets | {ANY_CHAR: None}))
        # an expression by its class and parts, of that class; no type of a dict says so
        self._known: dict[tuple[object, ...], Any] = {}
        self._next: dict[tuple[Expression, int, Holds], Expression] = {}
        self._open: set[tuple[Many, Expression]] = set()  # loops that are being entered
        self.nothing, self.anything = self._make(Nothing), self._make(Anything)
        self.end = self._make(End)
        behinds = list(dict.fromkeys(part for part in parts if isinstance(part, Behind)))
        self._numbers = {behind: number for number, behind in enumerate(behinds)}
        self.before = tuple(
            self.follow(b.body if b.is_whole else Each((ANYTHING, b.body)), self.end)
            for b in behinds
        )
        self.start = self.follow(tree, self.end)

    def _make(self, kind: type[E], *parts: object) -> E:
        key = (kind, *parts)
        found: E | None = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_EXPRESSIONS:
                raise UnsupportedConstraintError(
                    f"the regex comes to more than {MAX_EXPRESSIONS:,} states; make it simpler"
                )
            found = self._known[key] = kind(*parts)
        return found

    def follow(self, tree: Tree, rest: Expression) -> Expression:
        """Texts of a tree followed by those of an expression."""
        match tree:
            case Chars():
                return self._make(One, self.alphabet.members[tree], rest)
            case Each(parts):
                for part in reversed(parts):
                    rest = self.follow(part, rest)
                return rest
            case Either(options):
                return self.any_of(self.follow(option, rest) for option in options)
            case Many(body, least, most):
                return self._loop(tree, 0 if is_nullable(body) else least, most, rest)
            case Ahead(body, is_negative, is_whole):
                seen = self.follow(body, self.end if is_whole else self.anything)
                return self.all_of((self.without(seen) if is_negative else seen, rest))
            case Behind(_, is_negative):
                return self._make(Placed, self._numbers[tree], is_negative, rest)

    def _loop(self, tree: Many, least: int, most: int | None, rest: Expression) -> Expression:
        if most == 0:
            return rest
        if tree is ANYTHING and rest is self.anything:
            return rest
        return self._make(Loop, tree, least, most, rest)

    def _once(self, loop: Loop) -> Expression:
        """The body of a loop, then the loop with one repetition less."""
        most = None if loop.most is None else loop.most - 1
        again = self._loop(loop.tree, max(0, loop.least - 1), most, loop.rest)
        return self.follow(loop.tree.body, again)

    def any_of(self, parts: Iterable[Expression]) -> Expression:
        """Texts of any of the expressions."""
        return self._joined(AnyOf, parts, self.nothing, self.anything)

    def all_of(self, parts: Iterable[Expression]) -> Expression:
        """Texts of every one of the expressions."""
        return self._joined(AllOf, parts, self.anything, self.nothing)

    def _joined(
        self, kind: type[AnyOf] | type[AllOf], parts: Iterable[Expression],
        neutral: Expression, final: Expression,
    ) -> Expression:  # fmt: skip
        flat: set[Expression] = set()
        for part in parts:
            flat |= part.parts if isinstance(part, kind) else {part}
        flat.discard(neutral)
        if final in flat or any(isinstance(p, Except) and p.body in flat for p in flat):
            return final
        if len(flat) < 2:
            return flat.pop() if flat else neutral
        return self._make(kind, frozenset(flat))

    def without(self, body: Expression) -> Expression:
        """Texts that an expression does not match."""
        match body:
            case Nothing():
                return self.anything
            case Anything():
                return self.nothing
            case Except(inner):
                return inner
            case _:
                return self._make(Except, body)

    def holds(self, before: tuple[Expression, ...]) -> Holds:
        """Which lookbehinds hold at a place, from their expressions there."""
        found: Holds = ()
        for wanted in before:  # an inner one comes before the one that it is in
            found = (*found, self.may_end(wanted, found))
        return found

    def may_end(self, expression: Expression, holds: Holds) -> bool:
        """Whether the text may end here."""
        match expression:
            case End() | Anything():
                return True
            case Nothing() | One():
                return False
            case Loop(_, least, _, rest):
                return self.may_end(self._once(expression) if least else rest, holds)
            case Placed(number, is_negative, rest):
                return holds[number] != is_negative and self.may_end(rest, holds)
            case AnyOf(parts):
                return any(self.may_end(part, holds) for part in parts)
            case AllOf(parts):
                return all(self.may_end(part, holds) for part in parts)
            case Except(body):
                return not self.may_end(body, holds)

    def wanted(
        self, before: tuple[Expression, ...], char_class: int, holds: Holds
    ) -> tuple[Expression, ...]:
        """The expression of each lookbehind after a character."""
        return tuple(
            self.after(each, char_class, holds[:number]) for number, each in enumerate(before)
        )

    def after(self, expression: Expression, char_class: int, holds: Holds) -> Expression:
        """The expression of the rest of a text after a character.

        Args:
            expression: the expression before the character.
            char_class: the class of the character.
            holds: which lookbehinds hold before it.
        """
        key = expression, char_class, holds
        found = self._next.get(key)
        if found is None:
            found = self._after(expression, char_class, holds)
            if not self._open:  # inside a loop the result is not complete
                self._next[key] = found
        return found

    def _after(self, expression: Expression, char_class: int, holds: Holds) -> Expression:
        match expression:
            case Anything():
                return expression
            case Nothing() | End():
                return self.nothing
            case One(classes, rest):
                return rest if classes >> char_class & 1 else self.nothing
            case Loop():
                return self._after_loop(expression, char_class, holds)
            case Placed(number, is_negative, rest):
                is_met = holds[number] != is_negative
                return self.after(rest, char_class, holds) if is_met else self.nothing
            case AnyOf(parts):
                return self.any_of([self.after(part, char_class, holds) for part in parts])
            case AllOf(parts):
                return self.all_of([self.after(part, char_class, holds) for part in parts])
            case Except(body):
                return self.without(self.after(body, char_class, holds))

    def _after_loop(self, loop: Loop, char_class: int, holds: Holds) -> Expression:
        """After a character of a loop; entering it again without a character adds nothing."""
        if loop.least:
            return self.after(self._once(loop), char_class, holds)
        entry = loop.tree, loop.rest
        if entry in self._open:
            return self.nothing
        left = self.after(loop.rest, char_class, holds)
        self._open.add(entry)
        try:
            again = self.after(self._once(loop), char_class, holds)
        finally:
            self._open.discard(entry)
        return self.any_of((left, again))
