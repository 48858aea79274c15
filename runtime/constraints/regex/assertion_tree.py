"""The parts of a regex as a tree that keeps assertions at their places."""

from __future__ import annotations

import re
from collections.abc import Sequence

from radixlang.errors import UnsupportedConstraintError
from radixlang.runtime.constraints.regex.pattern import Chars, LiteralText, Pattern, chars
from radixlang.runtime.constraints.regex.regex_items import (
    NEWLINE,
    Argument,
    Item,
    Op,
    category,
    flatten,
    one_character,
    ops,
    with_place,
)
from radixlang.runtime.constraints.regex.regex_tree import (
    NO_TEXT,
    Ahead,
    Behind,
    Each,
    Either,
    Many,
    Tree,
    widths,
)

_AT_START, _AT_END = Behind(NO_TEXT, is_whole=True), Ahead(NO_TEXT, is_whole=True)
_AT_LINE_START = Either((_AT_START, Behind(NEWLINE)))
_AT_LINE_END = Either((_AT_END, Ahead(NEWLINE)))
_AT_LAST_LINE_END = Ahead(Either((NO_TEXT, NEWLINE)), is_whole=True)


def tree_of(items: Sequence[Item], source: str) -> Tree:
    """The tree of a regex.

    Raises:
        UnsupportedConstraintError: a part is not regular; the message names it.
    """
    return _Builder(source).sequence(items)


class _Builder:
    def __init__(self, source: str) -> None:
        self.source = source

    def sequence(self, items: Sequence[Item]) -> Tree:
        parts = tuple(self.item(*item) for item in items)
        return parts[0] if len(parts) == 1 else Each(parts)

    def item(self, op: Op, value: Argument, flags: int) -> Tree:
        character = one_character(op, value, flags)
        if character is not None:
            return _set(character)
        if op is ops.BRANCH:
            return Either(tuple(self.sequence(flatten(body, flags)) for body in value[1]))
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            least, most, body = value
            limit = None if most is ops.MAXREPEAT else int(most)
            return Many(self.sequence(flatten(body, flags)), int(least), limit)
        if op is ops.AT:
            return _anchor(value, flags)
        if op in (ops.ASSERT, ops.ASSERT_NOT):
            return self.look(op, value, flags)
        raise UnsupportedConstraintError(with_place(self.source, op, "is not a regular construct"))

    def look(self, op: Op, value: Argument, flags: int) -> Tree:
        direction, body = value
        inside = self.sequence(flatten(body, flags))
        if direction > 0:
            return Ahead(inside, op is ops.ASSERT_NOT)
        if _looks_beyond(inside, 0):
            raise UnsupportedConstraintError(
                with_place(self.source, op, "looks behind at a place that looks ahead")
            )
        return Behind(inside, op is ops.ASSERT_NOT)


def _set(character: Pattern) -> Chars:
    if isinstance(character, Chars):
        return character
    return (
        chars((ord(c), ord(c)) for c in character.value)
        if isinstance(character, LiteralText)
        else Chars(())
    )


def _anchor(kind: Op, flags: int) -> Tree:
    if kind in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
        is_line = flags & re.MULTILINE and kind is ops.AT_BEGINNING
        return _AT_LINE_START if is_line else _AT_START
    if kind is ops.AT_END_STRING:
        return _AT_END
    if kind is ops.AT_END:
        return _AT_LINE_END if flags & re.MULTILINE else _AT_LAST_LINE_END
    return _boundary(kind is ops.AT_BOUNDARY, category(ops.CATEGORY_WORD, bool(flags & re.ASCII)))


def _boundary(is_boundary: bool, word: Chars) -> Tree:
    """A word boundary, or a place that is none."""
    return Either((
        Each((Behind(word), Ahead(word, is_negative=is_boundary))),
        Each((Behind(word, is_negative=True), Ahead(word, is_negative=not is_boundary))),
    ))  # fmt: skip


def _looks_beyond(tree: Tree, num_after: int) -> bool:
    """Whether a lookahead inside a lookbehind may need characters after the lookbehind.

    Args:
        tree: a part of the lookbehind.
        num_after: the least number of its characters that follow the part.
    """
    match tree:
        case Each(parts):
            for part in reversed(parts):
                if _looks_beyond(part, num_after):
                    return True
                num_after += widths(part)[0]
            return False
        case Either(options):
            return any(_looks_beyond(option, num_after) for option in options)
        case Ahead(body, _, is_whole):
            return is_whole or widths(body)[1] > num_after or _looks_beyond(body, num_after)
        case Many(body) | Behind(body):
            return _looks_beyond(body, num_after)
        case Chars():
            return False
