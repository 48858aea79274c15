"""Specifications lowered to the mask engine's grammars."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias, assert_never

from llguidance import LLMatcher

from radixlang.constraints.specs import (
    Capture,
    Choices,
    Constraint,
    Grammar,
    JsonSchema,
    Regex,
    Sequence,
    Tools,
)
from radixlang.errors import InvalidConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints.grammar.finished_text import ParseTree
from radixlang.runtime.constraints.grammar.lowering import NO_FORCING, lower_grammar
from radixlang.runtime.constraints.grammar.unbounded import may_force
from radixlang.runtime.constraints.regex.pattern import (
    LiteralText,
    Pattern,
    alt,
    cat,
    chars,
    repeat,
    to_terminal,
)
from radixlang.runtime.constraints.regex.python_regex import translate
from radixlang.runtime.constraints.schema.lowering import lower_schema

MAX_SPEC_CHARS = 2_000_000
Body: TypeAlias = dict[str, object]  # a grammar of the engine, under the name of its language


@dataclass(frozen=True, slots=True)
class Lowered:
    """A constraint lowered to the engine.

    Args:
        body: the engine's grammar, under the name of its language.
        ignored: JSON pointers of schema keywords that strict=False left out.
        warnings: conditions that the masks do not enforce, such as a lookahead past a token's end.
        check: raises an error for an invalid finished text that the masks allowed.
        tree: the parse tree of a finished text, for lark grammars.
        captures: the variables that a finished text binds.
        forces: whether the engine can be asked for forced text; if not, it might not return.
    """

    body: Body
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    check: Callable[[str], None] | None = None
    tree: Callable[[str], ParseTree] | None = None
    captures: Callable[[str], dict[str, str]] | None = None
    forces: bool = True


class Grammars:
    """The engine's list of grammars that others refer to by name.

    Args:
        matcher: makes the engine's matcher of a grammar text.
    """

    def __init__(self, matcher: Callable[[str], LLMatcher]) -> None:
        self.subs: list[Body] = []
        self._matcher = matcher
        self._last: tuple[str, LLMatcher] | None = None

    def matcher(self, text: str) -> LLMatcher:
        """The engine's matcher of a grammar text; the last one is cached, as it is expensive."""
        if self._last is None or self._last[0] != text:
            self._last = (text, self._matcher(text))
        return self._last[1]

    def error(self, body: Body) -> str:
        """The engine's error for a grammar alone; empty if there is none."""
        found: str = self.matcher(_text(body, [])).get_error()
        return found

    def add(self, body: Body) -> str:
        """Add a grammar; returns the symbol that refers to it."""
        name = f"part{len(self.subs)}"
        self.subs.append({"name": name, **body})
        return f"@{name}"

    def text(self, top: Body) -> str:
        """All grammars as the engine's text, with `top` as the start."""
        return _text(top, self.subs)


def _text(top: Body, subs: list[Body]) -> str:
    return json.dumps({"grammars": [{"name": "top", **top}, *subs]})


def lower(spec: Constraint, grammars: Grammars) -> Lowered:
    """Lower a specification to the engine; parts of it are added to `grammars`.

    Raises:
        InvalidConstraintError: the specification is wrong.
        UnsupportedConstraintError: it has something that masks cannot enforce.
    """
    match spec:
        case Regex() | Choices():
            return Lowered({"lark_grammar": f"start: TEXT\nTEXT: {to_terminal(_regular(spec))}\n"})
        case JsonSchema():
            return _schema(spec, grammars)
        case Grammar():
            return _grammar(spec)
        case Tools():
            return _tools(spec, grammars)
        case Sequence():
            return _sequence(spec, grammars)
        case _:
            assert_never(spec)


def _checked_size(text: str) -> str:
    if len(text) > MAX_SPEC_CHARS:
        raise UnsupportedConstraintError(
            f"the constraint has {len(text):,} characters; at most {MAX_SPEC_CHARS:,} are taken"
        )
    return text


def regular_pattern(spec: Constraint) -> Pattern | None:
    """The pattern of a constraint that is a regular language; None for any other."""
    parts = [_inner(part) for part in (spec.parts if isinstance(spec, Sequence) else (spec,))]
    if not all(map(_is_regular, parts)):
        return None
    return cat(*(_regular(part) for part in parts))  # type: ignore[arg-type]


def has_grammar(spec: Constraint) -> bool:
    """Whether the constraint is a lark grammar or contains one."""
    parts = map(_inner, spec.parts) if isinstance(spec, Sequence) else ()
    return isinstance(spec, Grammar) or any(
        has_grammar(part) for part in parts if not isinstance(part, str)
    )


def _regular(spec: Regex | Choices | str) -> Pattern:
    if isinstance(spec, Regex):
        return translate(_checked_size(spec.pattern)).pattern
    options = (spec,) if isinstance(spec, str) else spec.options
    _checked_size("".join(options))
    for option in options:
        _refuse_surrogates(option)
    return alt(*map(LiteralText, options))


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidConstraintError(f"{text!r:.60} is not text: {error.reason}") from None


def _schema(spec: JsonSchema, grammars: Grammars) -> Lowered:
    found = lower_schema(
        _checked_size(spec.schema),
        strict=spec.strict,
        whitespace=spec.whitespace,
        asserts_formats=spec.formats == "assert",
        error_of=grammars.error,
    )
    return Lowered(found.body, found.ignored, found.warnings, check=found.check)


def _grammar(spec: Grammar) -> Lowered:
    _checked_size(spec.text)
    found = lower_grammar(spec)
    return Lowered(
        {"lark_grammar": found.text},
        warnings=found.warnings,
        check=found.check,
        tree=found.parse,
        captures=found.captures,
        forces=found.forces,
    )


def _tools(spec: Tools, grammars: Grammars) -> Lowered:
    lines: list[str] = []
    ignored: list[str] = []
    for index, tool in enumerate(spec.tools):
        options = JsonSchema(tool.parameters, strict=spec.strict, whitespace=spec.whitespace)
        arguments = _schema(options, grammars)
        ignored.extend(f"{tool.name}: {pointer}" for pointer in arguments.ignored)
        head = _call_head(spec, tool.name)
        lines.append(f"HEAD{index}: {to_terminal(head)}")
        lines.append(f"call{index}: HEAD{index} {grammars.add(arguments.body)}")
    tail = cat(_blanks(spec.whitespace), LiteralText("}" + spec.end))
    calls = " | ".join(f"call{index}" for index in range(len(spec.tools)))
    top = [f"start: ({calls}) TAIL", f"TAIL: {to_terminal(tail)}", *lines, ""]
    return Lowered({"lark_grammar": "\n".join(top)}, tuple(ignored))


def _call_head(spec: Tools, name: str) -> Pattern:
    """The pattern of a call up to its arguments."""
    blanks = _blanks(spec.whitespace)
    tokens = ["{", json.dumps(spec.name_key), ":", json.dumps(name), ",",
              json.dumps(spec.arguments_key), ":"]  # fmt: skip
    parts: list[Pattern] = [LiteralText(spec.begin)]
    for token in tokens:
        parts += [LiteralText(token), blanks]
    return cat(*parts)


def _blanks(most: int) -> Pattern:
    return repeat(chars([(9, 10), (13, 13), (32, 32)]), 0, most)


def _sequence(spec: Sequence, grammars: Grammars) -> Lowered:
    """Lower a sequence; neighbouring regular parts become one terminal, as lexers are greedy."""
    lines: list[str] = []
    symbols: list[str] = []
    ignored: list[str] = []
    warnings: list[str] = []
    forces = True
    for is_regular, group in groupby(map(_inner, spec.parts), key=_is_regular):
        parts = list(group)
        if is_regular:
            pattern = cat(*(_regular(part) for part in parts))  # type: ignore[arg-type]
            symbols.append(f"PART{len(lines)}")
            lines.append(f"{symbols[-1]}: {to_terminal(pattern)}")
            forces &= not may_force(pattern)
            continue
        for part in parts:
            lowered = lower(part, grammars)  # type: ignore[arg-type]
            symbols.append(grammars.add(lowered.body))
            ignored.extend(lowered.ignored)
            warnings.extend(lowered.warnings)
            forces &= lowered.forces
    text = "\n".join([*([] if forces else [NO_FORCING]), f"start: {' '.join(symbols)}", *lines, ""])
    return Lowered({"lark_grammar": text}, tuple(ignored), tuple(warnings), forces=forces)


def _inner(part: str | Constraint | Capture) -> str | Constraint:
    return part.constraint if isinstance(part, Capture) else part


def _is_regular(part: str | Constraint) -> bool:
    return isinstance(part, (str, Regex, Choices))
