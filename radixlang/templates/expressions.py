"""Expressions of a template: from their syntax trees to functions of state and names."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from radixlang.errors import ParameterError
from radixlang.spellings import hint_for
from radixlang.state.reading.bound_values import Joined
from radixlang.state.state import State
from radixlang.state.tracing import is_boundary
from radixlang.suggestions import shortened, suggestion
from radixlang.templates.source import UNDEFINED, Environment, Node, Source

_SHOWING = ("name", "compare", "filtered", "formatted")
# a value of the program that is running, of any type: the functions that take it check it
Value: TypeAlias = "Callable[[State, Environment], Any]"
# classes, which take arguments in brackets or not
_TYPES: dict[str, Any] = {
    "int": int, "float": float, "bool": bool, "str": str, "list": list, "dict": dict,
    "tuple": tuple,
}  # fmt: skip
# of values that only a run knows; what does not compare is an error of the template
_COMPARE: dict[str, Callable[[Any, Any], object]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge, "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}  # fmt: skip


class ValueBuilder:
    """One method for each kind of expression: `value_x` returns a Value."""

    def __init__(self, source: Source) -> None:
        self.source = source

    # -- values -------------------------------------------------------------------------

    def value(self, tree: Node, shown: bool = False) -> Value:
        """An expression as a function of state and names.

        `shown`: it is only inserted into text, so a generated value need not be known.
        """
        method = getattr(self, f"value_{tree.data}")
        made: Value = method(tree, shown) if tree.data in _SHOWING else method(tree)
        return made

    def value_name(self, tree: Node, shown: bool = False) -> Value:
        name = str(tree.children[0])
        position = tree.meta.start_pos
        self.source.use(name, position)

        def find(state: State, env: Environment) -> object:
            found = _named(state, env, name, shown)
            if found is UNDEFINED:
                raise self.source.error(
                    f"{name!r} has no value here; give it, or write {{{{ {name} | default(…) }}}}",
                    position,
                )
            return found

        return find

    def optional(self, tree: Node, shown: bool = False) -> Value:
        """Like `value`, but UNDEFINED if a name, a member or an item is missing."""
        if tree.data == "name":
            name = str(tree.children[0])
            self.source.use(name, tree.meta.start_pos, optional=True)
            return lambda state, env: _named(state, env, name, shown)
        if tree.data == "attribute":
            base, member = self.optional(tree.children[0]), str(tree.children[1])
            return lambda state, env: _member(base(state, env), member)
        if tree.data == "index":
            base, key = self.optional(tree.children[0]), self.value(tree.children[1])
            return lambda state, env: _item(base(state, env), key(state, env))
        return self.value(tree, shown)

    def value_filtered(self, tree: Node, shown: bool = False) -> Value:
        subject, name, argument = tree.children
        if name != "default":
            raise self.source.error(
                f"there is no filter {str(name)!r}; there is | default(…) for a value that is "
                'missing, and a format in quotes such as | ".2f"',
                tree.meta.start_pos,
            )
        if argument is None:
            raise self.source.error('write | default("…")', tree.meta.start_pos)
        value, otherwise = self.optional(subject, shown), self.value(argument, shown)

        def chosen(state: State, env: Environment) -> object:
            found = value(state, env)
            return otherwise(state, env) if found is UNDEFINED or found is None else found

        return chosen

    def value_formatted(self, tree: Node, shown: bool = False) -> Value:
        value, spec = self.value(tree.children[0], shown), text_of(tree.children[1])

        def formatted(state: State, env: Environment) -> str:
            found = value(state, env)
            try:
                return format(found, spec)
            except (TypeError, ValueError) as error:
                raise self.source.error(
                    f"{shortened(found)} has no format {spec!r}: {error}; a format such as "
                    '".2f" is of a number, and ">8" of a text',
                    tree.meta.start_pos,
                ) from error

        return formatted

    def value_is_test(self, tree: Node) -> Value:
        subject, name = tree.children
        if name not in ("defined", "none"):
            raise self.source.error(
                f"there is no test {str(name)!r}; write is defined, is none, or == …",
                tree.meta.start_pos,
            )
        value = self.optional(subject)
        absent = (UNDEFINED, None)
        if name == "none":
            return lambda state, env: any(value(state, env) is each for each in absent)
        return lambda state, env: all(value(state, env) is not each for each in absent)

    def value_is_not_test(self, tree: Node) -> Value:
        test = self.value_is_test(tree)
        return lambda state, env: not test(state, env)

    def value_string(self, tree: Node) -> Value:
        text = text_of(tree.children[0])
        return lambda state, env: text

    def value_number(self, tree: Node) -> Value:
        number = ast.literal_eval(str(tree.children[0]))
        return lambda state, env: number

    def value_true(self, tree: Node) -> Value:
        return lambda state, env: True

    def value_false(self, tree: Node) -> Value:
        return lambda state, env: False

    def value_none(self, tree: Node) -> Value:
        return lambda state, env: None

    def value_list(self, tree: Node) -> Value:
        values = [self.value(child) for child in tree.children if child is not None]
        return lambda state, env: [value(state, env) for value in values]

    def value_attribute(self, tree: Node) -> Value:
        value, name = self.value(tree.children[0]), str(tree.children[1])
        whole = ".".join(str(each) for each in (*tree.children[0].children, name))

        def attribute(state: State, env: Environment) -> object:
            if name == "thought" and state is not None and whole in state:
                return state[whole]
            found = _member(owner := value(state, env), name)
            if found is UNDEFINED:
                known = suggestion(name, _members(owner), f"it is a {type(owner).__name__}")
                raise self.source.error(f"no member {name!r} here; {known}", tree.meta.start_pos)
            return found

        return attribute

    def value_index(self, tree: Node) -> Value:
        value, key = self.value(tree.children[0]), self.value(tree.children[1])

        def item(state: State, env: Environment) -> object:
            owner, wanted = value(state, env), key(state, env)
            found = _item(owner, wanted)
            if found is UNDEFINED:
                has = f"it has {len(owner)}" if isinstance(owner, (list, tuple, str)) else ""
                known = has or suggestion(str(wanted), _members(owner), "there is no such key")
                raise self.source.error(f"no item {wanted!r} here; {known}", tree.meta.start_pos)
            return found

        return item

    def value_compare(self, tree: Node, shown: bool = False) -> Value:
        left, sign, right = tree.children
        if sign is None:
            return self.value(left, shown)
        compare = _COMPARE[" ".join(str(sign).split())]
        first, second = self.value(left), self.value(right)

        def compared(state: State, env: Environment) -> object:
            values = first(state, env), second(state, env)
            try:
                return compare(*values)
            except TypeError as error:
                if is_boundary(error):
                    raise
                kinds = " and ".join(type(value).__name__ for value in values)
                message = f"{error}; give values that compare, these are {kinds}"
                raise self.source.error(message, tree.meta.start_pos) from error

        return compared

    def value_negation(self, tree: Node) -> Value:
        value = self.value(tree.children[0])
        return lambda state, env: not value(state, env)

    def value_or_expr(self, tree: Node) -> Value:
        values = [self.value(child) for child in tree.children]
        return lambda state, env: any(value(state, env) for value in values)

    def value_and_expr(self, tree: Node) -> Value:
        values = [self.value(child) for child in tree.children]
        return lambda state, env: all(value(state, env) for value in values)

    # -- types and options --------------------------------------------------------------

    def type(self, tree: Node) -> object:
        """The type of a gen."""
        if tree.data == "type_literal":
            return Literal[tuple(text_of(child) for child in tree.children)]
        name, *inner = tree.children
        kind = _TYPES.get(str(name))
        if kind is None:
            known = ", ".join(_TYPES)
            raise self.source.error(
                f"no type {str(name)!r}; {suggestion(str(name), _TYPES, '')} a type is {known}, "
                'or "a" | "b"',
                tree.meta.start_pos,
            )
        parts = tuple(self.type(child) for child in inner if child is not None)
        return kind[parts if len(parts) > 1 else parts[0]] if parts else kind

    def options(
        self, trees: list[Node | None], known: tuple[str, ...], owner: str
    ) -> dict[str, Value]:
        """Options of a gen or select by name."""
        found = {}
        for tree in trees:
            if tree is None:
                continue
            name = str(tree.children[0])
            if name not in known:
                hint = hint_for(name, known, owner)
                message = f"{owner} has no option {name!r}; {hint}"
                raise self.source.error(message, tree.children[0].start_pos)
            found[name] = self.value(tree.children[1])
        return found


def _named(state: State, env: Environment, name: str, shown: bool) -> object:
    """The value of a name: a variable of the state, or of the template; else UNDEFINED."""
    if state is not None and name in state:
        return inserted(state, name) if shown else state[name]
    return env.find(name)


def _member(owner: object, name: str) -> object:
    if isinstance(owner, Mapping) and name in owner:
        return owner[name]
    is_hidden = name.startswith("_") or owner is UNDEFINED or owner is None
    return UNDEFINED if is_hidden else getattr(owner, name, UNDEFINED)


def _item(owner: Any, key: object) -> object:
    if owner is UNDEFINED or owner is None:
        return UNDEFINED
    try:
        return owner[key]
    except (KeyError, IndexError):
        return UNDEFINED


def _members(owner: object) -> list[str]:
    """The names that a message may suggest for a missing member or key."""
    if isinstance(owner, Mapping):
        return [str(key) for key in owner]
    return [name for name in dir(owner) if not name.startswith("_")]


def inserted(state: State, name: str) -> object:
    found = state._reader.variables.lookup(name)
    if isinstance(found, Joined):
        return ", ".join(format(item, "") for item in found)
    try:
        return state.ref(name)
    except ParameterError:
        return state[name]


def text_of(token: object) -> str:
    text = ast.literal_eval(str(token))
    assert isinstance(text, str)
    return text
