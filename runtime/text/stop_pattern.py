"""The first match of a pattern in a growing text, or where one may begin that is not complete.

The pattern is an automaton, so each character costs the same however often the pattern repeats;
Python's own matcher backtracks, and takes exponential time for `(a|a)+b`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from radixlang.errors import ConstraintError, ParameterError, UnsupportedConstraintError
from radixlang.runtime.constraints.regex.assertion_tree import tree_of
from radixlang.runtime.constraints.regex.automaton import Automaton, Expression
from radixlang.runtime.constraints.regex.python_regex import read_python
from radixlang.runtime.constraints.regex.regex_tree import Tree

MAX_BEGUN = 2_000  # positions at once where different matches may have begun
MAX_MOVES = 2_000  # transitions cached for one text


@dataclass(frozen=True, slots=True)
class _Move:
    """The transition of a state by one character: the remaining expressions and their sources."""

    must_follow: tuple[Expression, ...]
    sources: tuple[int, ...]
    before: tuple[Expression, ...]


class StopPattern:
    """Follows one text.

    Args:
        pattern: a Python regex.

    Raises:
        ParameterError: it has a construct that needs a backtracking matcher; the message names it.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._automaton = Automaton(_tree(pattern))
        self._start = self._automaton.follow(_tree(pattern), self._automaton.anything)
        self._must_follow: tuple[Expression, ...] = ()  # where matches have begun
        self._places: list[int] = []  # the first place of each
        self._before = self._automaton.before
        self._num_chars = 0
        self._may_begin = True
        self._moves: dict[tuple[object, ...], _Move] = {}

    def read(self, text: str, *, may_begin: bool = True) -> None:
        """Read the next piece of the text.

        Args:
            text: the piece.
            may_begin: whether a match may begin in it.

        Raises:
            UnsupportedConstraintError: the text and the pattern need too many states.
        """
        self._may_begin = may_begin
        try:
            for char in text:
                self._step(char)
        except UnsupportedConstraintError as error:
            raise UnsupportedConstraintError(f"stop_regex {self.pattern!r:.80}: {error}") from None

    def _step(self, char: str) -> None:
        key = self._must_follow, self._before, char, self._may_begin
        move = self._moves.get(key)
        if move is None:
            move = self._move(char)
            if len(self._moves) < MAX_MOVES:
                self._moves[key] = move
        if self._may_begin:
            self._places.append(self._num_chars)
        self._places = [self._places[source] for source in move.sources]
        self._must_follow, self._before = move.must_follow, move.before
        self._num_chars += 1

    def _move(self, char: str) -> _Move:
        automaton = self._automaton
        char_class = automaton.alphabet.class_of(char)
        holds = automaton.holds(self._before)
        found: dict[Expression, int] = {}
        begun = (*self._must_follow, self._start) if self._may_begin else self._must_follow
        for source, expression in enumerate(begun):
            rest = automaton.after(expression, char_class, holds)
            if rest is not automaton.nothing:
                found.setdefault(rest, source)  # the first place stands for the later ones
        if len(found) > MAX_BEGUN:
            raise UnsupportedConstraintError(f"matches begin at more than {MAX_BEGUN:,} places")
        before = automaton.wanted(self._before, char_class, holds)
        return _Move(tuple(found), tuple(found.values()), before)

    @property
    def match_start(self) -> int | None:
        """The position of the first match in the text so far; None if there is none."""
        holds = self._automaton.holds(self._before)
        for expression, place in zip(self._must_follow, self._places, strict=True):
            if self._automaton.may_end(expression, holds):
                return place
        is_here = self._may_begin and self._automaton.may_end(self._start, holds)
        return self._num_chars if is_here else None

    @property
    def first_begun(self) -> int:
        """The first position where a match may begin that more text completes, or the end."""
        return self._places[0] if self._places else self._num_chars


@lru_cache(maxsize=256)
def _tree(pattern: str) -> Tree:
    try:
        return tree_of(read_python(pattern), pattern)
    except ConstraintError as error:
        raise ParameterError(f"stop_regex {pattern!r:.80} is not served: {error}") from None
