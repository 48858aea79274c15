"""A JSON schema lowered to the mask engine, or refused with the pointer of a keyword."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from radixlang.errors import (
    ConstraintError,
    InvalidConstraintError,
    UnsupportedConstraintError,
)
from radixlang.json_types import Schema, Subschema
from radixlang.runtime.constraints.schema.keywords.table import FORMS, RULES, TESTS
from radixlang.runtime.constraints.schema.reading import Document, Place
from radixlang.runtime.constraints.schema.rewriting import RefusedKeywordError, Rewriter
from radixlang.runtime.constraints.schema.validation import Validator, checker


@dataclass(frozen=True, slots=True)
class LoweredSchema:
    """A schema lowered to the engine.

    Args:
        body: the engine's grammar.
        ignored: JSON pointers of the keywords that were left out.
        warnings: warnings for the user.
        check: raises an error for a finished text that breaks an ignored keyword.
    """

    body: Schema
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    check: Callable[[str], None] | None = None


def lower_schema(
    text: str,
    *,
    strict: bool,
    whitespace: int,
    asserts_formats: bool = True,
    error_of: Callable[[Schema], str],
) -> LoweredSchema:
    """Lower a schema to the engine.

    Args:
        text: the schema as JSON text.
        strict: refuse keywords that cannot be enforced; False leaves them out and lists them.
        whitespace: most blanks between two JSON tokens.
        asserts_formats: whether `format` asserts instead of annotating.
        error_of: the engine's error for a grammar, empty for a good one.

    Raises:
        InvalidConstraintError: it is not a schema, or has a reference without a target.
        UnsupportedConstraintError: a keyword cannot be enforced.
    """
    try:
        document = Document(_loaded(text), FORMS)
        options = _Options(whitespace, asserts_formats)
        return _lower(document, strict, options, error_of)
    except RecursionError:
        raise UnsupportedConstraintError("the JSON schema is nested too deeply") from None


def _loaded(text: str) -> Subschema:
    try:
        schema: Subschema = json.loads(text, parse_float=_finite)
        return schema
    except ValueError as error:  # such as JSON with a number of thousands of digits
        raise InvalidConstraintError(f"the JSON schema cannot be read: {error}") from None


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.60} is too large a number")
    return value


@dataclass(frozen=True, slots=True)
class _Options:
    whitespace: int
    asserts_formats: bool


def _lower(
    document: Document, strict: bool, options: _Options, error_of: Callable[[Schema], str]
) -> LoweredSchema:
    skipped: set[str] = set()
    while True:
        rewriter = Rewriter(
            document, RULES, skipped, strict=strict, asserts_formats=options.asserts_formats
        )
        try:
            body = _body(rewriter, options)
            message = error_of(body)
            if "nsatisfiable" in message:
                raise _empty(rewriter, message, error_of)
            if message:
                raise _blame(rewriter, message)
            ignored = tuple(sorted(f"#{p}" for p in skipped))
            return LoweredSchema(
                body, ignored, check=_check(document, options) if skipped else None
            )
        except RefusedKeywordError as error:
            if not rewriter.skip(error):
                raise UnsupportedConstraintError(
                    f"{error} (strict=False generates without it and names it)"
                ) from None


def _check(document: Document, options: _Options) -> Callable[[str], None]:
    check = checker(Validator(document, TESTS, asserts_formats=options.asserts_formats))

    def check_text(text: str) -> None:
        try:
            check(json.loads(text, parse_float=_finite))
        except ValueError as error:
            raise ConstraintError(f"the text cannot be checked: {error}") from None
        except RecursionError:
            raise ConstraintError(
                "the text cannot be checked: its arrays and objects are nested too deeply"
            ) from None

    return check_text


def _body(rewriter: Rewriter, options: _Options) -> Schema:
    guidance: Schema = {"whitespace_flexible": False}
    if options.whitespace:
        guidance = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{options.whitespace}}}"}
    return {"json_schema": {**rewriter.run(), "x-guidance": guidance}}


MAX_LOOKED_AT = 60  # schemas compiled separately to find one that allows nothing
_SIGNS = [
    (r"Unknown format: (.*)", "format"),
    (r"patternProperty regexes", "patternProperties"),
    (r"min/maxProperties", "minProperties"),
    (r"min/maxProperties", "maxProperties"),
    (r"oneOf", "oneOf"),
    (r"(?:regex|pattern)", "pattern"),
    (r"multipleOf", "multipleOf"),
]


def _blame(rewriter: Rewriter, message: str) -> Exception:
    """The engine's refusal as an error with the pointer of the keyword that probably caused it."""
    circle = re.search(r"circular references.*#/\$defs/(\w+)", message)
    if circle:
        return UnsupportedConstraintError(
            f"#{rewriter.pointer(circle[1])}: it refers to itself next to other keywords, "
            "which masks cannot follow"
        )
    first = _headline(message)
    if any(sign in message for sign in ("too large", "too complex", "limit", "fuel", "u16::MAX")):
        return UnsupportedConstraintError(f"the JSON schema is too complex: {first}")
    named = re.findall(r"'(\$?\w+)'|\"(\$?\w+)\"", message)
    wanted = [keyword for sign, keyword in _SIGNS if re.search(sign, message)]
    wanted += [n for pair in named for n in pair if n]
    for place in _every(rewriter.document):
        for keyword in wanted:
            pointer = f"{place.pointer}/{keyword}"
            is_there = isinstance(place.schema, dict) and keyword in place.schema
            if is_there and pointer not in rewriter.skipped:
                return RefusedKeywordError(pointer, first)
    return InvalidConstraintError(f"#: the JSON schema cannot be used: {first}")


def _headline(message: str) -> str:
    """The main line of the engine's error, which for a regex follows its text."""
    lines = message.strip().splitlines()
    marked = (line.removeprefix("error: ") for line in lines if line.startswith("error: "))
    return next(marked, lines[0])[:300]


def _empty(
    rewriter: Rewriter, message: str, error_of: Callable[[Schema], str]
) -> InvalidConstraintError:
    """The innermost of the first schemas that allow nothing."""
    for place in reversed(_every(rewriter.document)[:MAX_LOOKED_AT]):
        if isinstance(place.schema, bool):
            continue
        own = Rewriter(rewriter.document, RULES, set(rewriter.skipped), strict=True)
        try:
            found = error_of({"json_schema": own.run(place)})
        except UnsupportedConstraintError:
            continue
        if "nsatisfiable" in found:
            return _no_value(place.pointer, found)
    return _no_value("", message)


def _no_value(pointer: str, message: str) -> InvalidConstraintError:
    why = _headline(message).removeprefix("Unsatisfiable schema: ")
    return InvalidConstraintError(f"#{pointer}: no value can satisfy the JSON schema here: {why}")


def _every(document: Document) -> list[Place]:
    found, todo = [], [document.root]
    while todo:
        current = todo.pop(0)
        found.append(current)
        todo.extend(document.parts(current))
    return found
