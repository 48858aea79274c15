"""Regexes of JSON Schema: ECMA 262 with its flag u, read into the parts of Python's own parser.

Some syntax that the flag forbids is common in schemas. If its meaning without the flag is
unambiguous, it is read so: `\\-` and `\\<` are the characters themselves, and so is a brace that is
no repetition. The rest is refused by name: escapes of letters that ECMA 262 does not have, and
constructs that are not regular.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn, TypeAlias

from radixlang.errors import InvalidConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints.regex.pattern import (
    ANY_CHAR,
    MAX_CODE_POINT,
    Chars,
    chars,
    negate,
)
from radixlang.runtime.constraints.regex.python_regex import MAX_PATTERN_CHARS
from radixlang.runtime.constraints.regex.regex_items import (
    Argument,
    Body,
    Item,
    Op,
    flatten,
    ops,
    parser,
    with_caret,
)
from radixlang.runtime.constraints.regex.unicode_properties import assigned, property_characters

Part: TypeAlias = tuple[Op, Argument]

_LINE_ENDS = chars([(10, 10), (13, 13), (0x2028, 0x2029)])
_DIGIT = chars([(48, 57)])
_WORD = chars([(48, 57), (65, 90), (95, 95), (97, 122)])
_SPACE = chars([(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
                (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
                (0xFEFF, 0xFEFF)])  # fmt: skip
_SETS = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_SYNTAX = "^$\\.*+?()[]{}|/"  # characters that may be escaped under the flag u
_COUNT = re.compile(r"\{(\d+)(,(\d*))?\}")
_NAME = re.compile(r"\?<([A-Za-z_$][\w$]*)>")
_HEX = re.compile("[0-9A-Fa-f]+")


def read_ecma(source: str) -> list[Item]:
    """The parts of a regex for all texts in which an ECMA 262 regex matches somewhere.

    Raises:
        InvalidConstraintError: it is not a regex of ECMA 262.
        UnsupportedConstraintError: it has a construct that is not supported, which is named.
    """
    if len(source) > MAX_PATTERN_CHARS:
        raise UnsupportedConstraintError(
            f"the regex has {len(source)} characters; at most {MAX_PATTERN_CHARS} are taken"
        )
    try:
        return [_ANY_TEXT, *flatten(_Parser(source).whole(), re.ASCII), _ANY_TEXT]
    except RecursionError:
        raise UnsupportedConstraintError("the regex is nested too deeply") from None


def _sub(items: Iterable[Part]) -> Body:
    body: Body = parser.SubPattern(parser.State(), list(items))
    return body


def _class(body: Chars) -> Part:
    return ops.IN, [(ops.RANGE, pair) for pair in body.ranges]


_ANY_TEXT: Item = (ops.MAX_REPEAT, (0, ops.MAXREPEAT, _sub([_class(ANY_CHAR)])), re.ASCII)


class _Parser:
    """Reads one regex from left to right."""

    def __init__(self, source: str) -> None:
        self.source, self.at = source, 0
        self.names: set[str] = set()
        self.legacy: tuple[int, str] | None = None  # syntax that the flag u forbids, and its place
        self.modern: tuple[int, str] | None = None  # syntax with another meaning without it

    def whole(self) -> Body:
        """The parts of the regex."""
        found = self.choice()
        if self.at < len(self.source):
            self.fail("a parenthesis is closed that is not open")
        if self.legacy and self.modern:
            at, what = self.legacy
            self.refuse(f"{what}, which the flag u forbids, together with {self.modern[1]},", at)
        return found

    def choice(self) -> Body:
        options = [self.sequence()]
        while self.take("|"):
            options.append(self.sequence())
        return options[0] if len(options) == 1 else _sub([(ops.BRANCH, (None, options))])

    def sequence(self) -> Body:
        items: list[Part] = []
        while self.at < len(self.source) and self.peek() not in "|)":
            begun = self.at
            item = self.assertion()
            if item is not None:
                items.append(item)
                if self.counts(begun) is not None:
                    self.refuse("a repetition of a lookaround or an anchor", begun)
                continue
            items.append(self.counted(self.atom(), begun))
        return _sub(items)

    # repetitions

    def counted(self, item: Part, begun: int) -> Part:
        """An atom with the repetition after it."""
        found = self.counts(begun)
        if found is None:
            return item
        if self.counts(self.at) is not None:
            self.fail("nothing to repeat")
        return ops.MAX_REPEAT, (*found, _sub([item]))

    def counts(self, begun: int) -> tuple[int, Op] | None:
        """The counts of a repetition at this place; lazy ones match the same texts."""
        char = self.peek()
        found: tuple[int, Op]
        if char and char in "*+?":
            self.at += 1
            found = {"*": (0, ops.MAXREPEAT), "+": (1, ops.MAXREPEAT), "?": (0, 1)}[char]
        elif match := _COUNT.match(self.source, self.at):
            self.at = match.end()
            least = int(match[1][:9])
            most = least if match[2] is None else int(match[3][:9]) if match[3] else ops.MAXREPEAT
            if match[3] and most < least:
                self.fail("the numbers of a repetition are out of order", match.start())
            found = least, most
        else:
            return None
        self.take("?")
        return found

    # assertions and groups

    def assertion(self) -> Part | None:
        for text, item in _ASSERTIONS.items():
            if self.take(text):
                return item
        for text, (op, direction) in _LOOKS.items():
            if self.take(text):
                return op, (direction, self.group_body())
        return None

    def group_body(self) -> Body:
        begun = self.at
        body = self.choice()
        if not self.take(")"):
            self.fail("a group is not closed", begun - 1)
        return body

    def atom(self) -> Part:
        char, begun = self.peek(), self.at
        self.at += 1
        if char == "(":
            return ops.SUBPATTERN, (None, 0, 0, self.group(begun))
        if char == "[":
            return self.character_class(begun)
        if char == ".":
            return _class(negate(_LINE_ENDS))
        if char == "\\":
            return _class(self.escape(begun, in_class=False)[0])
        if char in "*+?" or (char == "{" and _COUNT.match(self.source, begun)):
            self.fail("nothing to repeat", begun)
        if char in "{}]":
            if re.compile(r"\{,\d+\}").match(self.source, begun):
                self.refuse("{,n}, which ECMA 262 reads letter by letter (write {0,n})", begun)
            self.legacy = self.legacy or (begun, f"an unescaped {char}")
        return self.literal(char, begun)

    def literal(self, char: str, begun: int) -> Part:
        if ord(char) > 0xFFFF:
            self.modern = self.modern or (begun, f"the character {char!r}")
        return ops.LITERAL, ord(char)

    def group(self, begun: int) -> Body:
        if self.take("?:"):
            return self.group_body()
        if match := _NAME.match(self.source, self.at):
            if match[1] in self.names:
                self.refuse(f"the group name {match[1]!r} twice", begun)
            self.names.add(match[1])
            self.at = match.end()
        elif self.peek() == "?":
            shown = self.source[begun : begun + 3]
            self.refuse(f"{shown}, which is no group that ECMA 262 has everywhere", begun)
        return self.group_body()

    # characters

    def character_class(self, begun: int) -> Part:
        is_negative = self.take("^")
        found: list[tuple[int, int]] = []
        has_property = False
        while not self.take("]"):
            if self.at >= len(self.source):
                self.fail("a character class is not closed", begun)
            has_property |= self.source.startswith(("\\p", "\\P"), self.at)
            found.extend(self.class_range().ranges)
        body = chars(found)
        body = negate(body) if is_negative else body
        return _class(assigned(body) if has_property else body)

    def class_range(self) -> Chars:
        """One character or set, or a range between two characters."""
        begun = self.at
        low, first = self.class_atom()
        if self.peek() != "-" or self.source[self.at + 1 : self.at + 2] in ("]", ""):
            return low
        self.at += 1
        high, last = self.class_atom()
        if first is None or last is None:
            if 45 in (first, last) or re.match(r"-[^\]]", self.source[self.at : self.at + 2]):
                self.refuse(
                    "a range that begins or ends with a set, with another behind it,", begun
                )
            self.legacy = self.legacy or (begun, "a range that begins or ends with a set")
            return chars([*low.ranges, (45, 45), *high.ranges])
        if last < first:
            self.fail("a range of characters is out of order", begun)
        return chars([(first, last)])

    def class_atom(self) -> tuple[Chars, int | None]:
        """A set of characters, and the code point if it is one character."""
        begun = self.at
        char = self.peek()
        self.at += 1
        if char == "\\":
            return self.escape(begun, in_class=True)
        return _one(self.literal(char, begun)[1])

    def escape(self, begun: int, *, in_class: bool) -> tuple[Chars, int | None]:
        """The set of an escape whose backslash was read, and the code point if it is one."""
        char = self.peek()
        self.at += 1
        if char in "dws" and char:
            return _SETS[char], None
        if char in "DWS" and char:
            return negate(_SETS[char.lower()]), None
        if char in "pP" and char:
            return self.property(begun, char == "P"), None
        if char in _CONTROLS or (in_class and char == "b"):
            return _one(_CONTROLS.get(char, 8))
        if char == "c" and re.match("[A-Za-z]", self.peek()):
            self.at += 1
            return _one(ord(self.source[self.at - 1]) % 32)
        if char == "x" and (code := self.hexadecimal(2)) is not None:
            return _one(code)
        if char == "u" and (code := self.code_point(begun)) is not None:
            return _one(code)
        return _one(self.itself(char, begun, in_class))

    def itself(self, char: str, begun: int, in_class: bool) -> int:
        """The code point of a character whose escape means the character itself."""
        if not char:
            self.fail("nothing follows the last backslash", begun)
        if char == "0" and not self.peek().isdecimal():
            return 0
        if char.isdecimal() or char == "k":
            what = "an octal escape" if in_class or char == "0" else "a back-reference"
            self.refuse(what, begun)
        if char.isascii() and char.isalpha():
            self.refuse(f"\\{char}, an escape that ECMA 262 does not have here", begun)
        if char not in _SYNTAX and not (in_class and char == "-"):
            self.legacy = self.legacy or (begun, f"\\{char}")
        return ord(char)

    def code_point(self, begun: int) -> int | None:
        """The code point after \\u; two surrogates make one."""
        if self.take("{"):
            self.modern = self.modern or (begun, "\\u{…}")
            match = _HEX.match(self.source, self.at)
            self.at = match.end() if match else self.at
            if match is None or not self.take("}") or int(match[0], 16) > MAX_CODE_POINT:
                self.fail("\\u{…} holds no code point", begun)
            return int(match[0], 16)
        high = self.hexadecimal(4)
        if high is None or not 0xD800 <= high <= 0xDFFF:
            return high
        self.modern = self.modern or (begun, "a surrogate")
        place = self.at
        if high < 0xDC00 and self.take("\\u"):
            low = self.hexadecimal(4)
            if low is not None and 0xDC00 <= low <= 0xDFFF:
                return 0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00
        self.at = place
        return high

    def hexadecimal(self, num_digits: int) -> int | None:
        digits = self.source[self.at : self.at + num_digits]
        if len(digits) < num_digits or not _HEX.fullmatch(digits):
            return None
        self.at += num_digits
        return int(digits, 16)

    def property(self, begun: int, is_negative: bool) -> Chars:
        self.modern = self.modern or (begun, "\\p{…}")
        match = re.compile(r"\{([\w=]*)\}").match(self.source, self.at)
        if match is None:
            self.fail("\\p needs a property in braces", begun)
        self.at = match.end()
        found = property_characters(match[1])
        if found is None:
            self.refuse(f"the property {match[1]!r}", begun)
        return assigned(negate(found)) if is_negative else found

    # the text of the regex

    def peek(self) -> str:
        return self.source[self.at : self.at + 1]

    def take(self, text: str) -> bool:
        is_here = self.source.startswith(text, self.at)
        self.at += len(text) if is_here else 0
        return is_here

    def fail(self, why: str, at: int | None = None) -> NoReturn:
        place = self.at if at is None else at
        raise InvalidConstraintError(with_caret(self.source, place, f"bad regex: {why}"))

    def refuse(self, what: str, at: int) -> NoReturn:
        raise UnsupportedConstraintError(
            with_caret(self.source, at, f"{what} is not served in a regex of JSON Schema")
        )


def _one(code: int) -> tuple[Chars, int]:
    return chars([(code, code)]), code


_ASSERTIONS = {
    "^": (ops.AT, ops.AT_BEGINNING_STRING), "$": (ops.AT, ops.AT_END_STRING),
    "\\b": (ops.AT, ops.AT_BOUNDARY), "\\B": (ops.AT, ops.AT_NON_BOUNDARY),
}  # fmt: skip
_LOOKS = {
    "(?=": (ops.ASSERT, 1), "(?!": (ops.ASSERT_NOT, 1),
    "(?<=": (ops.ASSERT, -1), "(?<!": (ops.ASSERT_NOT, -1),
}  # fmt: skip
