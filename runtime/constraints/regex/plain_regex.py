"""Automata converted to plain patterns by eliminating one state after another."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from radixlang.errors import UnsupportedConstraintError
from radixlang.runtime.constraints.regex.automaton import Automaton, Expression
from radixlang.runtime.constraints.regex.pattern import (
    EMPTY,
    NOTHING,
    Alt,
    Chars,
    LiteralText,
    Pattern,
    cat,
    chars,
    repeat,
)
from radixlang.runtime.constraints.regex.regex_tree import Tree

MAX_STATES = 400
MAX_PLAIN_SIZE = 30_000

_Masks = dict[int, dict[int, int]]  # from a state to another, by the bits of which classes


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """The pattern from one state to another, and its size."""

    pattern: Pattern
    size: int

    def then(self, other: _Way) -> _Way:
        return _Way(cat(self.pattern, other.pattern), self.size + other.size)

    def either(self, other: _Way) -> _Way:
        """Either pattern; common parts are not merged, as the patterns may be large."""
        a, b = self.pattern, other.pattern
        if isinstance(a, Chars) and isinstance(b, Chars):
            return _Way(chars([*a.ranges, *b.ranges]), 1)
        options = (part.options if isinstance(part, Alt) else (part,) for part in (a, b))
        return _Way(Alt(tuple(chain(*options))), self.size + other.size)


_NONE = _Way(EMPTY, 0)
_Edges = dict[int, dict[int, _Way]]


def plain_pattern(tree: Tree, *, complement: bool = False) -> Pattern:
    """A pattern without assertions for the texts of a regex with assertions, or for all others.

    Raises:
        UnsupportedConstraintError: it has too many states, or the pattern grows too long.
    """
    automaton = Automaton(tree)
    masks, ends = _states(automaton, complement)
    masks, ends = _merged(_living(masks, ends), ends)
    sets = automaton.alphabet.characters()
    labels: dict[int, _Way] = {}
    for targets in masks.values():
        for mask in targets.values():
            if mask not in labels:
                labels[mask] = _label(mask, sets)
    return _eliminated({s: {t: labels[m] for t, m in ts.items()} for s, ts in masks.items()}, ends)


def _states(automaton: Automaton, complement: bool) -> tuple[_Masks, set[int]]:
    """Every state, the first being 0, and those in which a text may end."""
    classes = [n for n, body in enumerate(automaton.alphabet.characters()) if body.ranges]
    first = automaton.start, automaton.before
    numbers: dict[tuple[Expression, tuple[Expression, ...]], int] = {first: 0}
    masks: _Masks = {}
    ends: set[int] = set()
    todo = [first]
    while todo:
        state = todo.pop()
        expression, before = state
        holds = automaton.holds(before)
        if automaton.may_end(expression, holds) != complement:
            ends.add(numbers[state])
        here = masks[numbers[state]] = dict[int, int]()
        for char_class in classes:
            following = (
                automaton.after(expression, char_class, holds),
                automaton.wanted(before, char_class, holds),
            )
            if following not in numbers:
                numbers[following] = len(numbers)
                todo.append(following)
            target = numbers[following]
            here[target] = here.get(target, 0) | 1 << char_class
        if len(numbers) > MAX_STATES:
            raise UnsupportedConstraintError(
                f"the regex comes to more than {MAX_STATES} states without lookaround; make it "
                "simpler"
            )
    return masks, ends


def _living(masks: _Masks, ends: set[int]) -> _Masks:
    """Without the states from which no end can be reached."""
    alive = set(ends)
    while True:
        found = {state for state, targets in masks.items() if alive & targets.keys()} | alive
        if found == alive:
            break
        alive = found
    return {
        state: {target: mask for target, mask in masks[state].items() if target in alive}
        for state in alive | {0}
    }


def _merged(masks: _Masks, ends: set[int]) -> tuple[_Masks, set[int]]:
    """With equivalent states merged (Moore 1956)."""
    group = {state: int(state in ends) for state in masks}
    while True:
        numbers: dict[object, int] = {}
        found: dict[int, int] = {}
        for state in sorted(masks):  # the first has the number 0
            signature = group[state], frozenset(_grouped(masks[state], group).items())
            found[state] = numbers.setdefault(signature, len(numbers))
        is_stable = len(numbers) == len(set(group.values()))
        group = found
        if is_stable:
            break
    merged = {group[state]: _grouped(targets, group) for state, targets in masks.items()}
    return merged, {group[state] for state in ends}


def _grouped(targets: dict[int, int], group: dict[int, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for target, mask in targets.items():
        found[group[target]] = found.get(group[target], 0) | mask
    return found


def _label(mask: int, sets: list[Chars]) -> _Way:
    """The characters of some classes."""
    body = chars(r for number, each in enumerate(sets) if mask >> number & 1 for r in each.ranges)
    (low, high), *more = body.ranges
    return _Way(LiteralText(chr(low)) if low == high and not more else body, 1)


def _eliminated(ways: _Edges, ends: set[int]) -> Pattern:
    """The regex of an automaton, by eliminating states, the cheapest first (Brzozowski and
    McCluskey 1963)."""
    first, last = -1, -2
    for state in ends:
        ways[state][last] = _NONE
    ways[first] = {0: _NONE}
    while len(ways) > 1:
        _leave_out(min(ways, key=lambda s: (s == first, _cost(ways, s))), ways)
    return ways[first][last].pattern if last in ways[first] else NOTHING


def _cost(ways: _Edges, state: int) -> int:
    coming = sum(state in targets for targets in ways.values())
    return coming * len(ways[state])


def _leave_out(state: int, ways: _Edges) -> None:
    own = ways.pop(state)
    loop = own.pop(state, _NONE)
    around = _Way(repeat(loop.pattern, 0, None), loop.size)
    for targets in ways.values():
        coming = targets.pop(state, None)
        if coming is None:
            continue
        for target, going in own.items():
            found = coming.then(around).then(going)
            targets[target] = found = targets[target].either(found) if target in targets else found
            if found.size > MAX_PLAIN_SIZE:
                raise UnsupportedConstraintError(
                    "the lookaround of the regex grows too long when it is written without; make "
                    "it simpler"
                )
