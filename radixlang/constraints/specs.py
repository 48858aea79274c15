"""Constraints on a text: regex, JSON schema, grammar, choices, tools, and sequences of them.

These are specifications: plain text, hashable by content, independent of an engine. The runtime
compiles them for a vocabulary; `match` checks a finished text without a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args, get_origin

from radixlang.errors import InvalidConstraintError, ParameterError
from radixlang.hooks import hook
from radixlang.json_types import TypeForm

if TYPE_CHECKING:
    from typing_extensions import Unpack

Finish: TypeAlias = Literal["error", "close"]

DEFAULT_WHITESPACE = 24  # characters: a line break and eleven levels of indentation by two


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole text matches `pattern`, as by `re.fullmatch` (Python's syntax).

    `finish` says what happens at max_tokens inside the constraint: "error" raises an
    IncompleteError with the partial text, "close" adds a short valid ending.
    """

    pattern: str
    finish: Finish = "error"


class JsonSchemaKeywords(TypedDict, total=False):
    """Options of a JsonSchema."""

    strict: bool
    whitespace: int
    formats: Literal["assert", "annotate"]
    finish: Finish


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The text is one JSON value that is valid under a schema.

    Args:
        schema: the schema as JSON text, keys in the order in which they are to be written.
        strict: refuse a schema with a keyword that cannot be enforced. False ignores such
            keywords and lists them in the compiled constraint.
        whitespace: most blanks and line breaks between two JSON tokens; 0 writes compactly.
        formats: "assert" enforces `format`; "annotate" takes it as an annotation, as JSON Schema
            itself does since 2019-09.
    """

    schema: str
    strict: bool = True
    whitespace: int = DEFAULT_WHITESPACE
    formats: Literal["assert", "annotate"] = "assert"
    finish: Finish = "error"

    def __post_init__(self) -> None:
        if self.formats not in ("assert", "annotate"):
            raise InvalidConstraintError(f'formats is "assert" or "annotate", got {self.formats!r}')
        _check_whitespace(self.whitespace)

    @classmethod
    def of(cls, schema: TypeForm, **options: Unpack[JsonSchemaKeywords]) -> JsonSchema:
        """From a dict, a bool, JSON text, a pydantic model, a dataclass or any Python type."""
        if isinstance(schema, cls):
            return replace(schema, **options) if options else schema
        return cls(canonical_json(_load_schema(schema)), **options)


@dataclass(frozen=True, slots=True)
class Grammar:
    """The text is a sentence of a lark grammar.

    Args:
        text: the grammar, in lark's own language.
        start: the rule it starts from.
        parser: "lalr" or "earley", with lark's meaning; "auto" takes lalr if the grammar has no
            conflicts.
        captures: rules whose matched text is bound to a variable of that name.
        import_paths: folders in which `%import` looks, before lark's own.
        source_path: the file that `text` came from; relative imports start in its folder.
        whitespace: most characters of ignored text between two tokens.
    """

    text: str
    start: str = "start"
    parser: Literal["auto", "lalr", "earley"] = "auto"
    captures: tuple[str, ...] = ()
    import_paths: tuple[str, ...] = ()
    source_path: str | None = None
    whitespace: int = DEFAULT_WHITESPACE
    finish: Finish = "error"

    def __post_init__(self) -> None:
        if self.parser not in ("auto", "lalr", "earley"):
            raise InvalidConstraintError(
                f'parser is "auto", "lalr" or "earley", got {self.parser!r}'
            )
        _check_whitespace(self.whitespace)


@dataclass(frozen=True, slots=True)
class Choices:
    """The text is exactly one of `options`, which are taken literally."""

    options: tuple[str, ...]
    finish: Finish = "error"

    def __post_init__(self) -> None:
        if isinstance(self.options, str):
            raise InvalidConstraintError(
                f"choices must be a list of strings, got the string {self.options!r}"
            )
        if not isinstance(self.options, Iterable):
            raise InvalidConstraintError(f"choices must be a list of strings, got {self.options!r}")
        object.__setattr__(self, "options", tuple(self.options))
        if not self.options:
            raise InvalidConstraintError("choices is empty; give at least one string")
        for option in self.options:
            if not isinstance(option, str):
                raise InvalidConstraintError(f"choices must hold strings, got {option!r}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called: its name, and the JSON schema of its arguments.

    `parameters` is JSON text; a dict or a type is converted to it.
    """

    name: str
    parameters: str
    description: str = ""

    @classmethod
    def of(cls, tool: object) -> Tool:
        """From a Python function, a Tool, or a dict as chat templates have them."""
        if isinstance(tool, cls):
            return tool
        if isinstance(tool, Mapping):
            from radixlang.constraints.types.tool_schemas import parts_of_mapping

            return cls(*parts_of_mapping(tool))
        if callable(tool):
            from radixlang.constraints.types.tool_schemas import parts_of_function

            return cls(*parts_of_function(tool))
        raise InvalidConstraintError(f"a tool is a function or a dict with a name, got {tool!r}")

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, str):
            schema = canonical_json(_load_schema(self.parameters))
            object.__setattr__(self, "parameters", schema)


class ToolsKeywords(TypedDict, total=False):
    """Options of a Tools."""

    begin: str
    end: str
    name_key: str
    arguments_key: str
    strict: bool
    whitespace: int
    finish: Finish


@dataclass(frozen=True, slots=True)
class Tools:
    """The text is one valid call: {"name": …, "arguments": {…}} between `begin` and `end`.

    Args:
        tools: the tools that may be called.
        begin: text before the call, as the model's chat template wants it.
        end: text after it.
        name_key: the key of the tool's name.
        arguments_key: the key of its arguments.
    """

    tools: tuple[Tool, ...]
    begin: str = ""
    end: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    strict: bool = True
    whitespace: int = DEFAULT_WHITESPACE
    finish: Finish = "error"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", tuple(Tool.of(tool) for tool in self.tools))
        names = [tool.name for tool in self.tools]
        if not names:
            raise InvalidConstraintError("tools is empty; give at least one")
        if len(set(names)) != len(names):
            raise InvalidConstraintError(f"two tools share a name: {', '.join(sorted(names))}")
        _check_whitespace(self.whitespace)

    def parse(self, text: str) -> ToolCall:
        """The call that a generated text makes."""
        body = text[len(self.begin) : len(text) - len(self.end)]
        call = json.loads(body)
        return ToolCall(call[self.name_key], call[self.arguments_key])


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the tool's name and its arguments as JSON values."""

    name: str
    arguments: dict[str, Any]  # JSON values; typed ones come from a function's annotations


@dataclass(frozen=True, slots=True)
class Capture:
    """A part of a Sequence whose text is bound to the variable `name`."""

    name: str
    constraint: Constraint


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts one after another: literal strings, constraints, and captures of constraints."""

    parts: tuple[str | Constraint | Capture, ...]
    finish: Finish = "error"

    def __post_init__(self) -> None:
        if isinstance(self.parts, str):
            raise InvalidConstraintError(
                f"a sequence has a list of parts, got the string {self.parts!r:.60}"
            )
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts:
            raise InvalidConstraintError("a sequence needs at least one part")
        for part in self.parts:
            inner = part.constraint if isinstance(part, Capture) else part
            if not isinstance(inner, (str, *CONSTRAINT_TYPES)):
                raise InvalidConstraintError(
                    f"parts of a sequence are strings, constraints and captures, got {inner!r:.60}"
                )
        names = [part.name for part in self.parts if isinstance(part, Capture)]
        if len(set(names)) != len(names):
            raise InvalidConstraintError(f"a capture's name is used twice: {', '.join(names)}")


Constraint: TypeAlias = "Regex | JsonSchema | Grammar | Choices | Tools | Sequence"

CONSTRAINT_TYPES = (Regex, JsonSchema, Grammar, Choices, Tools, Sequence)


@dataclass(frozen=True, slots=True)
class Match:
    """The result of `match`. It is true if the text was accepted.

    Args:
        status: "accepted"; "incomplete": a valid text starts with this one, which is not complete;
            "rejected": no valid text starts with it.
        position: number of characters of the text that are a valid beginning.
        expected: what could follow at `position`, in words.
        captures: variables bound by captures, if the text was accepted.
    """

    status: Literal["accepted", "incomplete", "rejected"]
    position: int
    expected: str = ""
    captures: Mapping[str, str] | None = None

    def __bool__(self) -> bool:
        return self.status == "accepted"


def match(constraint: object, text: str) -> Match:
    """Check a text against a constraint without a model.

    Args:
        constraint: a constraint, or a string (a regex), dict or type (a JSON schema).

    Raises:
        InvalidConstraintError, UnsupportedConstraintError: as for a generation.
    """
    if not isinstance(text, str):
        raise InvalidConstraintError(f"match reads a string, got {text!r:.60}")
    found: Match = hook("match_text")(as_constraint(constraint), text)
    return found


def as_constraint(value: object) -> Constraint:
    """A constraint as it is; a string as a regex; a dict, bool or type as a JSON schema."""
    if isinstance(value, CONSTRAINT_TYPES):
        return value
    if isinstance(value, str):
        return Regex(value)
    return JsonSchema.of(value)


def from_kwargs(
    *,
    regex: str | Regex | None = None,
    json_schema: object = None,
    grammar: str | Grammar | None = None,
    choices: object = None,
    tools: Iterable[object] | Tools | None = None,
    constraint: object = None,
    finish: Finish | None = None,
    strict: bool | None = None,
    whitespace: int | None = None,
) -> Constraint | None:
    """The one constraint that keyword arguments of `gen` ask for, or None.

    Raises:
        ParameterError: two constraints were given, or an option that the constraint does not have.
        InvalidConstraintError: the constraint itself is wrong.
    """
    given = {
        name: value
        for name, value in {
            "regex": regex, "json_schema": json_schema, "grammar": grammar,
            "choices": choices, "tools": tools, "constraint": constraint,
        }.items() if value is not None
    }  # fmt: skip
    if len(given) > 1:
        raise ParameterError(
            f"{' and '.join(given)} were given together; a generation has one constraint, "
            "so keep one of them"
        )
    options = {"finish": finish, "strict": strict, "whitespace": whitespace}
    wanted = {name: value for name, value in options.items() if value is not None}
    if not given:
        if wanted:
            raise ParameterError(f"{', '.join(wanted)} needs a constraint to act on")
        return None
    ((name, value),) = given.items()
    return _with_options(_BUILDERS[name](value), wanted)


def canonical_json(value: object) -> str:
    """JSON text of a schema; the order of its keys stays, since it is the order of generation."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise InvalidConstraintError("the JSON schema is nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise InvalidConstraintError(f"the JSON schema is not JSON: {error}") from error


def _load_schema(schema: object) -> object:
    if isinstance(schema, (str, bytes)):
        return _parse_json(schema)
    if isinstance(schema, (Mapping, bool)):
        return schema
    if isinstance(schema, list):
        raise InvalidConstraintError(f"a JSON schema is an object or a boolean, got {schema!r:.60}")
    from radixlang.constraints.types.type_schemas import schema_of

    return schema_of(schema)


def _parse_json(text: str | bytes) -> object:
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise InvalidConstraintError("the JSON schema is nested too deeply") from error
    except ValueError as error:
        raise InvalidConstraintError(
            f"the JSON schema is not JSON text: {error}, in {text!r:.60}; a file is given by its "
            "text, as in Path(name).read_text()"
        ) from error
    if not isinstance(schema, (dict, bool)):
        raise InvalidConstraintError(f"a JSON schema is an object or a boolean, got {schema!r:.60}")
    return schema


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _as_regex(value: object) -> Regex:
    if isinstance(value, Regex):
        return value
    pattern = getattr(value, "pattern", value)  # a compiled re.Pattern carries its text
    if not isinstance(pattern, str):
        raise InvalidConstraintError(f"regex must be a string, got {value!r}")
    flags = _inline_flags(getattr(value, "flags", 0))
    return Regex(flags + pattern)


def _inline_flags(flags: int) -> str:
    letters = {2: "i", 8: "m", 16: "s", 64: "x", 256: "a"}  # re's values, without importing re
    chosen = "".join(letter for bit, letter in letters.items() if flags & bit)
    return f"(?{chosen})" if chosen else ""


def _as_grammar(value: object) -> Grammar:
    if isinstance(value, Grammar):
        return value
    if not isinstance(value, str):
        raise InvalidConstraintError(f"grammar must be lark's text or a Grammar, got {value!r:.60}")
    return Grammar(value)


def _as_choices(value: object) -> Choices:
    if isinstance(value, Choices):
        return value
    if get_origin(value) is Literal:
        value = get_args(value)
    elif isinstance(value, type) and issubclass(value, Enum):
        value = [member.value for member in value]
    options: Any = value  # checked by Choices
    return Choices(options)


def _as_tools(value: object) -> Tools:
    if isinstance(value, Tools):
        return value
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        raise InvalidConstraintError(f"tools is a list of functions or dicts, got {value!r:.60}")
    return Tools(tuple(value))


def _check_whitespace(most: int) -> None:
    if not isinstance(most, int) or most < 0:
        raise InvalidConstraintError(
            f"whitespace is the most characters between two tokens, 0 or more, got {most!r}"
        )


_BUILDERS: dict[str, Callable[[object], Constraint]] = {
    "regex": _as_regex,
    "json_schema": JsonSchema.of,
    "grammar": _as_grammar,
    "choices": _as_choices,
    "tools": _as_tools,
    "constraint": as_constraint,
}


def _with_options(constraint: Constraint, options: Mapping[str, Any]) -> Constraint:
    # each constraint has options of its own, and checks them
    for name, value in options.items():
        if not hasattr(constraint, name):
            kind = type(constraint).__name__
            raise ParameterError(f"{name}={value!r} says nothing to a {kind} constraint")
    if options.get("finish", "error") not in ("error", "close"):
        raise ParameterError(f'finish must be "error" or "close", got {options["finish"]!r}')
    return replace(constraint, **options) if options else constraint
