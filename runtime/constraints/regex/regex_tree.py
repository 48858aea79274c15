"""A regex with its assertions as a tree, and the character classes that it distinguishes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from radixlang.runtime.constraints.regex.pattern import ANY_CHAR, MAX_CODE_POINT, Chars, chars


@dataclass(frozen=True, slots=True, eq=False)
class Each:
    """Trees one after another."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Either:
    """Any one of the trees."""

    options: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Many:
    """A tree from `least` to `most` times; None is unbounded."""

    body: Tree
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """A lookahead: the rest begins with the body, or is the body; or (negative) does not."""

    body: Tree
    is_negative: bool = False
    is_whole: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Behind:
    """A lookbehind: the text before ends with the body, or is the body; or (negative) does not."""

    body: Tree
    is_negative: bool = False
    is_whole: bool = False


Tree: TypeAlias = "Chars | Each | Either | Many | Ahead | Behind"

NO_TEXT = Each(())
ANYTHING = Many(ANY_CHAR, 0, None)


def all_trees(tree: Tree) -> Iterator[Tree]:
    """Every part of a tree, inner parts first."""
    match tree:
        case Each(parts) | Either(parts):
            for part in parts:
                yield from all_trees(part)
        case Many(body) | Ahead(body) | Behind(body):
            yield from all_trees(body)
        case Chars():
            pass
    yield tree


def is_nullable(tree: Tree) -> bool:
    """Whether a tree matches the empty text, and asserts nothing there."""
    match tree:
        case Each(parts):
            return all(map(is_nullable, parts))
        case Either(options):
            return any(map(is_nullable, options))
        case Many(body, least, _):
            return least == 0 or is_nullable(body)
        case Chars() | Ahead() | Behind():
            return False


def widths(tree: Tree) -> tuple[int, float]:
    """The least and the most characters of a tree's texts."""
    match tree:
        case Chars():
            return 1, 1
        case Each(parts):
            each = [widths(part) for part in parts]
            return sum(low for low, _ in each), sum(high for _, high in each)
        case Either(options):
            each = [widths(option) for option in options]
            return min((low for low, _ in each), default=0), max((h for _, h in each), default=0)
        case Many(body, least, most):
            low, high = widths(body)
            return low * least, high and (math.inf if most is None else high * most)
        case Ahead() | Behind():
            return 0, 0


@dataclass(frozen=True, slots=True, eq=False)
class Alphabet:
    """Characters in classes: no set of a tree distinguishes two of one class.

    Args:
        starts: the first character of each range.
        classes: the class of each range.
        members: a bit for each class that a set of characters holds.
        num_classes: how many there are.
    """

    starts: tuple[int, ...]
    classes: tuple[int, ...]
    members: dict[Chars, int]
    num_classes: int

    @classmethod
    def of(cls, sets: list[Chars]) -> Alphabet:
        """The classes that sets of characters distinguish."""
        edges = {0} | {low for body in sets for low, _ in body.ranges}
        edges |= {high + 1 for body in sets for _, high in body.ranges if high < MAX_CODE_POINT}
        starts = tuple(sorted(edges))
        marks = [0] * len(starts)
        for bit, body in enumerate(sets):
            for low, high in body.ranges:
                for at in range(bisect_right(starts, low) - 1, bisect_right(starts, high)):
                    marks[at] |= 1 << bit
        numbers = {mark: number for number, mark in enumerate(dict.fromkeys(marks))}
        members = {
            body: sum(1 << number for mark, number in numbers.items() if mark >> bit & 1)
            for bit, body in enumerate(sets)
        }
        return cls(starts, tuple(numbers[mark] for mark in marks), members, len(numbers))

    def class_of(self, char: str) -> int:
        """The number of a character's class."""
        return self.classes[bisect_right(self.starts, ord(char)) - 1]

    def characters(self) -> list[Chars]:
        """The characters of each class."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.num_classes)]
        ends = [start - 1 for start in self.starts[1:]] + [MAX_CODE_POINT]
        for low, high, number in zip(self.starts, ends, self.classes, strict=True):
            found[number].append((low, high))
        return [chars(ranges) for ranges in found]
