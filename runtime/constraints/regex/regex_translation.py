"""The parts of a regex as a pattern, with its assertions as conditions on the neighbouring text.

A regex matches either a whole text or a token, whose neighbouring text is not known. X(?!Y)Z is
X (Z & ~(Y .*)), and (?<!Y) is its mirror image.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from radixlang.errors import UnsupportedConstraintError
from radixlang.runtime.constraints.regex.assertion_tree import tree_of
from radixlang.runtime.constraints.regex.pattern import (
    ANY_TEXT,
    EMPTY,
    NOTHING,
    Not,
    Pattern,
    alt,
    both,
    cat,
    is_nullable,
    min_width,
    negate,
    prefix_free,
    repeat,
    size,
)
from radixlang.runtime.constraints.regex.plain_regex import plain_pattern
from radixlang.runtime.constraints.regex.regex_items import (
    NEWLINE,
    Argument,
    Body,
    Item,
    Op,
    category,
    flatten,
    has_assertion,
    is_assertion,
    name_of,
    one_character,
    ops,
    with_place,
)

MAX_REPEAT_COUNT = 20_000
MAX_PATTERN_NODES = 50_000
MAX_CONDITIONS = 300  # ways in which the assertions of one regex can hold
MAX_PATTERN_SIZE = 60_000  # positions once repetitions are expanded


class UnknownTextError(UnsupportedConstraintError):
    """An assertion about text that is not known at its place."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One way to fulfil an assertion: patterns of the text left and right of it.

    `reach` is the number of characters that it looks at; None means all of them.
    """

    left: Pattern | None = None
    right: Pattern | None = None
    reach: int | None = None


@dataclass(slots=True)
class Translation:
    """A regex as a pattern, and the conditions on its surroundings that had to be dropped."""

    pattern: Pattern
    dropped: list[str] = field(default_factory=list)


def translate_items(items: Sequence[Item], source: str, *, whole: bool = True) -> Translation:
    """The parts of a regex as a pattern.

    Args:
        items: the parsed regex.
        source: the regex itself, for messages.
        whole: it must match a whole text; False for a token inside a text.

    Raises:
        UnsupportedConstraintError: it has a construct that is not regular, which is named.
    """
    try:
        return _Translator(source, whole).run(items)
    except UnknownTextError as error:
        if not whole:
            raise
        try:
            return Translation(plain_pattern(tree_of(items, source)))
        except UnsupportedConstraintError as failure:
            raise UnsupportedConstraintError(f"{failure}\n{error}") from None


class _Translator:
    """Translates the items of one regex."""

    def __init__(self, source: str, whole: bool) -> None:
        self.source, self.whole = source, whole
        self.dropped: list[str] = []
        self.num_nodes = self.num_conditions = 0
        self.is_lazy = False
        self.depth = 0  # repetitions and choices around the current sequence

    def run(self, items: Sequence[Item]) -> Translation:
        """The pattern of the items."""
        try:
            pattern = self.sequence(items, is_cut=not self.whole)
        except RecursionError:
            raise UnsupportedConstraintError("the regex is nested too deeply") from None
        if self.is_lazy and not self.whole:
            pattern = prefix_free(pattern)
        if size(pattern) > MAX_PATTERN_SIZE:
            raise UnsupportedConstraintError(
                f"the regex has {size(pattern):,} positions with its repetitions written out; "
                f"at most {MAX_PATTERN_SIZE:,} are taken"
            )
        return Translation(pattern, self.dropped)

    def sequence(
        self, items: Sequence[Item], *, is_cut: bool, is_open: bool | None = None
    ) -> Pattern:
        """Items one after another.

        is_cut: the text before them is not known. is_open: nor is the text after them.
        """
        is_open = not self.whole if is_open is None else is_open
        before: list[Pattern] = []
        for index, (op, value, flags) in enumerate(items):
            rest = items[index + 1 :] if is_assertion(op) or op is ops.BRANCH else ()
            if is_assertion(op):
                left = cat(*before)
                conditions = self.conditions(op, value, flags)
                return alt(*(self.under(c, left, rest, is_cut, is_open, op) for c in conditions))
            if op is ops.BRANCH and has_assertion(value):
                left = cat(*before)
                ways = [self.spliced(branch, flags, rest) for branch in value[1]]
                return alt(*(self.resume(left, way, is_cut, is_open) for way in ways))
            is_end = index == len(items) - 1 and self.depth == 0 and not self.whole
            if op is ops.BRANCH and is_end:
                before.append(alt(*(self.ending(branch, flags) for branch in value[1])))
            else:
                before.append(self.item(op, value, flags))
        return cat(*before)

    def ending(self, branch: Body, flags: int) -> Pattern:
        """The pattern of a branch at the end of a token; a lazy one stops at its first match."""
        was_lazy, self.is_lazy = self.is_lazy, False
        pattern = self.inner(branch, flags)
        pattern = prefix_free(pattern) if self.is_lazy else pattern
        self.is_lazy = was_lazy
        return pattern

    def spliced(self, branch: Body, flags: int, rest: Sequence[Item]) -> list[Item]:
        return [*flatten(branch, flags), *rest]

    def resume(self, left: Pattern, items: Sequence[Item], is_cut: bool, is_open: bool) -> Pattern:
        """The sequence of items after a left part, at which later assertions may look."""
        seen: Item = ("PATTERN", left, 0)
        return self.sequence([seen, *items], is_cut=is_cut, is_open=is_open)

    def under(
        self, condition: Condition, left: Pattern, rest: Sequence[Item], is_cut: bool,
        is_open: bool, op: Op,
    ) -> Pattern:  # fmt: skip
        """Left and rest with a condition that holds between them."""
        self.num_conditions += 1
        if self.num_conditions > MAX_CONDITIONS:
            raise self.unknown(op, f"can hold in more than {MAX_CONDITIONS} ways with the others")
        if condition.left is not None:
            left = self.meets_left(condition, left, is_cut, op)
        if condition.right is None:
            return self.resume(left, rest, is_cut, is_open)
        right = self.sequence(rest, is_cut=is_cut or left != EMPTY, is_open=is_open)
        return cat(left, self.meets_right(condition, right, is_open, op))

    def meets_left(self, condition: Condition, left: Pattern, is_cut: bool, op: Op) -> Pattern:
        assert condition.left is not None
        is_local = min_width(left) >= (1 if condition.reach is None else condition.reach)
        if is_cut and not is_local:
            raise self.unknown(op, "looks at text before this place that is not known here")
        return both(left, condition.left) if left != EMPTY else _if_empty(condition.left)

    def meets_right(self, condition: Condition, right: Pattern, is_open: bool, op: Op) -> Pattern:
        assert condition.right is not None
        is_local = condition.reach is not None and min_width(right) >= condition.reach
        if not is_open or is_local:
            return both(right, condition.right) if right != EMPTY else _if_empty(condition.right)
        if not self.whole and (right == EMPTY or isinstance(condition.right, Not)):
            self.dropped.append(name_of(op))
            return right if right == EMPTY else both(right, condition.right)
        raise self.unknown(op, "looks at text after this token that is not known here")

    def conditions(self, op: Op, value: Argument, flags: int) -> list[Condition]:
        """The ways to fulfil an assertion."""
        if op is ops.AT:
            return self.anchor(value, flags)
        direction, body = value
        inside, reach = flatten(body, flags), _max_width(body)
        beyond: Item = ("PATTERN", ANY_TEXT, 0)
        if direction > 0:
            seen = self.sequence([*inside, beyond], is_cut=True, is_open=False)
            return [Condition(right=Not(seen) if op is ops.ASSERT_NOT else seen, reach=reach)]
        seen = self.sequence([beyond, *inside], is_cut=False, is_open=True)
        return [Condition(left=Not(seen) if op is ops.ASSERT_NOT else seen, reach=reach)]

    def anchor(self, kind: Op, flags: int) -> list[Condition]:
        line = bool(flags & re.MULTILINE)
        if kind in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
            if line and kind is ops.AT_BEGINNING:
                return [Condition(left=alt(EMPTY, cat(ANY_TEXT, NEWLINE)), reach=1)]
            return [Condition(left=EMPTY)]
        if kind in (ops.AT_END, ops.AT_END_STRING):
            if kind is ops.AT_END_STRING:
                return [Condition(right=EMPTY)]
            after = cat(NEWLINE, ANY_TEXT) if line else NEWLINE
            return [Condition(right=alt(EMPTY, after), reach=1 if line else None)]
        return self.boundary(kind is ops.AT_BOUNDARY, flags)

    def boundary(self, is_boundary: bool, flags: int) -> list[Condition]:
        word = category(ops.CATEGORY_WORD, bool(flags & re.ASCII))
        ends, ends_not = cat(ANY_TEXT, word), alt(EMPTY, cat(ANY_TEXT, negate(word)))
        starts, starts_not = cat(word, ANY_TEXT), alt(EMPTY, cat(negate(word), ANY_TEXT))
        pairs = [(ends, starts_not), (ends_not, starts)]
        if not is_boundary:
            pairs = [(ends, starts), (ends_not, starts_not)]
        return [Condition(left, right, 1) for left, right in pairs]

    def item(self, op: Op, value: Argument, flags: int) -> Pattern:
        """One item that is not an assertion."""
        self.num_nodes += 1
        if self.num_nodes > MAX_PATTERN_NODES:
            raise UnsupportedConstraintError(
                f"the regex has more than {MAX_PATTERN_NODES} parts; make it shorter"
            )
        if op == "PATTERN":
            pattern: Pattern = value
            return pattern
        character = one_character(op, value, flags)
        if character is not None:
            return character
        if op is ops.BRANCH:
            return alt(*(self.inner(branch, flags) for branch in value[1]))
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            return self.repetition(op, value, flags)
        raise UnsupportedConstraintError(with_place(self.source, op, "is not a regular construct"))

    def inner(self, body: Body, flags: int) -> Pattern:
        """A part under repetition or choice, whose neighbouring text is not known."""
        self.depth += 1
        pattern = self.sequence(flatten(body, flags), is_cut=True, is_open=True)
        self.depth -= 1
        return pattern

    def repetition(self, op: Op, value: Argument, flags: int) -> Pattern:
        least, most, body = value
        if has_assertion(body):
            raise self.unknown(op, "repeats a lookaround or an anchor")
        self.is_lazy |= op is ops.MIN_REPEAT
        limit = None if most is ops.MAXREPEAT else int(most)
        if max(least, limit or 0) > MAX_REPEAT_COUNT:
            raise UnsupportedConstraintError(
                f"the regex repeats {max(least, limit or 0)} times; at most {MAX_REPEAT_COUNT}"
            )
        return repeat(self.inner(body, flags), least, limit)

    def unknown(self, op: Op, why: str) -> UnknownTextError:
        return UnknownTextError(with_place(self.source, op, why))


def _max_width(body: Body) -> int | None:
    widest = int(body.getwidth()[1])
    return widest if widest < 1_000_000 else None


def _if_empty(condition: Pattern) -> Pattern:
    """The empty text, if it fulfils a condition."""
    return EMPTY if is_nullable(condition) else NOTHING
