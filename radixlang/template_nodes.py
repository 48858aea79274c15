"""From a template's syntax tree to steps that append to a state."""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from radixlang.errors import ParameterError, TemplateError
from radixlang.expressions import gen, role, select
from radixlang.graph import Location
from radixlang.groups import Joined
from radixlang.state import State

Step = Callable[[State, "Environment"], None]
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
    """A template's text, and what its errors and includes need."""

    text: str
    file: str
    folder: Path | None
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


def build(tree: Any, source: Source) -> tuple[tuple[Step, ...], dict[str, Any]]:
    """Steps and arguments of a parsed template."""
    builder = _Builder(source)
    steps = tuple(builder.steps(tree.children))
    return steps, source.parameters


class _Builder:
    """One method a kind of node; `step_x` gives a Step, `value_x` a Value."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def steps(self, items: list[Any]) -> Iterator[Step]:
        before = ""
        for item in items:
            if item.data == "text" and before in ("role", "named_role"):
                token = item.children[0]  # the line break after a turn ends the turn's line
                item.children[0] = token.update(value=re.sub(r"\A[ \t]*\r?\n", "", str(token)))
            if item.data != "comment":
                yield self._at(item, getattr(self, f"step_{item.data}")(item))
            before = item.data

    def _at(self, item: Any, step: Step) -> Step:
        location = Location(self.source.file, item.meta.line)

        def located(state: State, env: Environment) -> None:
            state._recorder.at = location
            step(state, env)

        return located

    # -- steps --------------------------------------------------------------------------

    def step_text(self, item: Any) -> Step:
        (token,) = item.children
        starts, ends = self.source.lonely
        text = str(token)
        if token.end_pos in starts:
            text = text.rstrip(" \t") if "\n" in text or token.start_pos == 0 else text.strip(" \t")
        if token.start_pos in ends:
            text = re.sub(r"\A[ \t]*\n?", "", text)
        return _append(text)

    def step_raw(self, item: Any) -> Step:
        inner = re.sub(r"\A\{%\s*raw\s*%\}|\{%\s*endraw\s*%\}\Z", "", str(item.children[0]))
        return _append(inner)

    def step_output(self, item: Any) -> Step:
        value = self.value(item.children[0], shown=True)
        spec = _string(item.children[1]) if len(item.children) > 1 else ""

        def output(state: State, env: Environment) -> None:
            state += format(value(state, env), spec)

        return output

    def step_gen(self, item: Any) -> Step:
        name, kind, *options = item.children
        made = self.type(kind) if kind is not None else None
        values = self.options(options)
        if name is not None:
            self.source.bound.add(str(name))

        def generate(state: State, env: Environment) -> None:
            given = {key: value(state, env) for key, value in values.items()}
            state += self._guarded(item, lambda: gen(name and str(name), made, **given))

        return generate

    def step_select(self, item: Any) -> Step:
        name, choices, *options = item.children
        value, values = self.value(choices), self.options(options)
        self.source.bound.add(str(name))

        def choose(state: State, env: Environment) -> None:
            given = {key: option(state, env) for key, option in values.items()}
            found = value(state, env)
            state += self._guarded(item, lambda: select(str(name), found, **given))

        return choose

    def _guarded(self, item: Any, make: Callable[[], Any]) -> Any:
        """Errors of a wrong option, shown at its place in the template."""
        try:
            return make()
        except (ParameterError, TypeError) as error:
            raise self.source.error(str(error), item.meta.start_pos) from error

    def step_role(self, item: Any) -> Step:
        name = re.sub(r"[{%}\s]", "", str(item.children[0]))
        return self._turn(name, item.children[1])

    def step_named_role(self, item: Any) -> Step:
        return self._turn(_string(item.children[0]), item.children[1])

    def _turn(self, name: str, body: Any) -> Step:
        role(name, "")
        if body.children and body.children[-1].data == "text":
            last = body.children[-1].children[0]
            cut = re.sub(r"\r?\n[ \t]*\Z", "", str(last))
            body.children[-1].children[0] = last.update(value=cut)
        steps = tuple(self.steps(body.children))

        def turn(state: State, env: Environment) -> None:
            with state.role(name):
                _run(steps, state, env)

        return turn

    def step_cond(self, item: Any) -> Step:
        test, body, *rest = item.children
        arms = [(self.value(test), tuple(self.steps(body.children)))]
        otherwise: tuple[Step, ...] = ()
        for part in rest:
            if part is None:
                continue
            if part.data == "elif":
                arms.append(
                    (self.value(part.children[0]), tuple(self.steps(part.children[1].children)))
                )
            else:
                otherwise = tuple(self.steps(part.children[0].children))

        def branch(state: State, env: Environment) -> None:
            for condition, steps in arms:
                if condition(state, env):
                    return _run(steps, state, env)
            return _run(otherwise, state, env)

        return branch

    def step_loop(self, item: Any) -> Step:
        name, values, body = item.children
        value = self.value(values)
        steps = self._scoped(str(name), body)

        def loop(state: State, env: Environment) -> None:
            for each in value(state, env):
                _run(steps, state, Environment({str(name): each}, env))

        return loop

    def _scoped(self, name: str, body: Any) -> tuple[Step, ...]:
        fresh = name not in self.source.bound
        self.source.bound.add(name)
        steps = tuple(self.steps(body.children))
        if fresh:
            self.source.bound.discard(name)
        return steps

    def step_fork(self, item: Any) -> Step:
        head, body, join = item.children
        name = str(head.children[0]) if head.data == "fork_each" else None
        value = self.value(head.children[-1])
        steps = self._scoped(name, body) if name else tuple(self.steps(body.children))

        def fork(state: State, env: Environment) -> None:
            found = value(state, env)
            each = list(found) if name else [None] * int(found)
            group = state.fork(len(each))
            for branch, one in zip(group, each, strict=True):
                _run(steps, branch, Environment({name: one} if name else {}, env))
            if join.data == "join_text":
                state.join(group, text=True, separator=_string(join.children[0]))
            else:
                state.join(group, *(str(name) for name in join.children if name is not None))

        return fork

    def step_set(self, item: Any) -> Step:
        name, expression = item.children
        value = self.value(expression)
        self.source.bound.add(str(name))

        def assign(state: State, env: Environment) -> None:
            env.names[str(name)] = value(state, env)

        return assign

    def step_include(self, item: Any) -> Step:
        source = self.source
        wanted = _string(item.children[0])
        if source.folder is None:
            raise source.error("an include needs a folder to look in", item.meta.start_pos)
        path = source.folder / wanted
        if str(path) in (*source.including, source.file):
            raise source.error(f"{wanted!r} includes itself", item.meta.start_pos)
        if not path.is_file():
            raise source.error(f"there is no template {str(path)!r}", item.meta.start_pos)
        inner = source.parse(
            source.read(path), str(path), path.parent, (*source.including, source.file)
        )
        for name, default in inner.parameters.items():
            if name not in source.bound:
                source.parameters.setdefault(name, default)

        def include(state: State, env: Environment) -> None:
            _run(inner.steps, state, env)

        return include

    def step_args(self, item: Any) -> Step:
        declared: dict[str, Any] = {}
        for argument in item.children:
            name, default = argument.children
            declared[str(name)] = (
                inspect.Parameter.empty if default is None else self._fixed(default)
            )
        self.source.parameters = {**declared, **self.source.parameters}
        return lambda state, env: None

    def _fixed(self, expression: Any) -> Any:
        """A default: an expression without names."""
        names = [node for node in expression.iter_subtrees() if node.data == "name"]
        if names:
            raise self.source.error("a default cannot use names", names[0].meta.start_pos)
        return self.value(expression)(None, Environment({}))  # type: ignore[arg-type]

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
                return _shown(state, name) if shown else state[name]
            try:
                return env.find(name)
            except KeyError:
                raise self.source.error(
                    f"{name!r} has no value here", tree.meta.start_pos
                ) from None

        return find

    def value_string(self, tree: Any) -> Value:
        text = _string(tree.children[0])
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
            return Literal[tuple(_string(child) for child in tree.children)]
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


def _run(steps: tuple[Step, ...], state: State, env: Environment) -> None:
    for step in steps:
        step(state, env)


def _append(text: str) -> Step:
    def append(state: State, env: Environment) -> None:
        state += text

    return append


def _shown(state: State, name: str) -> Any:
    found = state._lookup(name)
    if isinstance(found, Joined):
        return ", ".join(format(item, "") for item in found)
    try:
        return state.ref(name)
    except ParameterError:
        return state[name]


def _string(token: Any) -> str:
    text = ast.literal_eval(str(token))
    assert isinstance(text, str)
    return text
