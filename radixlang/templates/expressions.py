"""Expressions of a template: from their syntax trees to functions of state and names."""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from radixlang.errors import ParameterError, TemplateError
from radixlang.state.groups import Joined
from radixlang.state.state import State

Value = Callable[[State, "Environment"], Any]
_TYPES: dict[str, Any] = {
    "int": int, "float": float, "bool": bool, "str": str, "list": list, "dict": dict,
    "tuple": tuple,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge, "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}  # fmt: skip


class Environment:
    """Names of a template while it runs: arguments, loop variables, `set`."""

    def __init__(self, arguments: dict[str, Any], outer: Environment | None = None) -> None:
        self.names = arguments
        self.outer = outer

    def find(self, name: str) -> Any:
        """The value, innermost first; KeyError if there is none."""
        scope: Environment | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        raise KeyError(name)


@dataclass
class Source:
    """A template's text, and what its errors and includes need.

    Includes are looked up in `folder`, that of the file, and have to lie below `root`, that of the
    template which was asked for.
    """

    text: str
    file: str
    folder: Path | None
    root: Path | None
    including: tuple[str, ...]
    lonely: tuple[set[int], set[int]]
    parse: Callable[..., Any]
    read: Callable[[Path], str]
    parameters: dict[str, Any] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)

    def error(self, message: str, position: int) -> TemplateError:
        """An error at a place of the text, with the line and a caret."""
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        line = self.text[start : len(self.text) if end < 0 else end]
        number, column = self.text.count("\n", 0, position) + 1, position - start + 1
        caret = re.sub(r"[^\t]", " ", line[: column - 1]) + "^"
        return TemplateError(f"{self.file}:{number}:{column}: {message}\n  {line}\n  {caret}")

    def use(self, name: str) -> None:
        """A name is read: unless the template binds it, it is an argument."""
        if name not in self.bound:
            self.parameters.setdefault(name, inspect.Parameter.empty)


class ValueBuilder:
    """One method a kind of expression: `value_x` gives a Value."""

    def __init__(self, source: Source) -> None:
        self.source = source

    # -- values -------------------------------------------------------------------------

    def value(self, tree: Any, shown: bool = False) -> Value:
        """An expression as a function of state and names.

        `shown`: it is only inserted into text, so a generated value need not be known.
        """
        method = getattr(self, f"value_{tree.data}")
        made: Value = method(tree, shown) if tree.data in ("name", "compare") else method(tree)
        return made

    def value_name(self, tree: Any, shown: bool = False) -> Value:
        name = str(tree.children[0])
        self.source.use(name)

        def find(state: State, env: Environment) -> Any:
            if state is not None and name in state:
                return inserted(state, name) if shown else state[name]
            try:
                return env.find(name)
            except KeyError:
                raise self.source.error(
                    f"{name!r} has no value here", tree.meta.start_pos
                ) from None

        return find

    def value_string(self, tree: Any) -> Value:
        text = text_of(tree.children[0])
        return lambda state, env: text

    def value_number(self, tree: Any) -> Value:
        number = ast.literal_eval(str(tree.children[0]))
        return lambda state, env: number

    def value_true(self, tree: Any) -> Value:
        return lambda state, env: True

    def value_false(self, tree: Any) -> Value:
        return lambda state, env: False

    def value_none(self, tree: Any) -> Value:
        return lambda state, env: None

    def value_list(self, tree: Any) -> Value:
        values = [self.value(child) for child in tree.children if child is not None]
        return lambda state, env: [value(state, env) for value in values]

    def value_attribute(self, tree: Any) -> Value:
        value, name = self.value(tree.children[0]), str(tree.children[1])

        def attribute(state: State, env: Environment) -> Any:
            found = value(state, env)
            if isinstance(found, dict) and name in found:
                return found[name]
            if name.startswith("_") or not hasattr(found, name):
                raise self.source.error(f"no member {name!r} here", tree.meta.start_pos)
            return getattr(found, name)

        return attribute

    def value_index(self, tree: Any) -> Value:
        value, key = self.value(tree.children[0]), self.value(tree.children[1])
        return lambda state, env: value(state, env)[key(state, env)]

    def value_compare(self, tree: Any, shown: bool = False) -> Value:
        left, sign, right = tree.children
        if sign is None:
            return self.value(left, shown)
        compare = _COMPARE[" ".join(str(sign).split())]
        first, second = self.value(left), self.value(right)
        return lambda state, env: compare(first(state, env), second(state, env))

    def value_negation(self, tree: Any) -> Value:
        value = self.value(tree.children[0])
        return lambda state, env: not value(state, env)

    def value_or_expr(self, tree: Any) -> Value:
        values = [self.value(child) for child in tree.children]
        return lambda state, env: any(value(state, env) for value in values)

    def value_and_expr(self, tree: Any) -> Value:
        values = [self.value(child) for child in tree.children]
        return lambda state, env: all(value(state, env) for value in values)

    # -- types and options --------------------------------------------------------------

    def type(self, tree: Any) -> Any:
        """The type that a gen asks for."""
        if tree.data == "type_literal":
            return Literal[tuple(text_of(child) for child in tree.children)]
        name, *inner = tree.children
        kind = _TYPES.get(str(name))
        if kind is None:
            known = ", ".join(_TYPES)
            raise self.source.error(
                f'no type {str(name)!r}; a type is {known}, or "a" | "b"', tree.meta.start_pos
            )
        parts = tuple(self.type(child) for child in inner if child is not None)
        return kind[parts if len(parts) > 1 else parts[0]] if parts else kind

    def options(self, trees: list[Any]) -> dict[str, Value]:
        """Options of a gen or select by name."""
        return {
            str(tree.children[0]): self.value(tree.children[1])
            for tree in trees
            if tree is not None
        }


def inserted(state: State, name: str) -> Any:
    found = state._lookup(name)
    if isinstance(found, Joined):
        return ", ".join(format(item, "") for item in found)
    try:
        return state.ref(name)
    except ParameterError:
        return state[name]


def text_of(token: Any) -> str:
    text = ast.literal_eval(str(token))
    assert isinstance(text, str)
    return text
