"""From a template's syntax tree to steps that append to a state."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

from radixlang.errors import (
    ConstraintError,
    InvalidConstraintError,
    ParameterError,
    RadixlangError,
)
from radixlang.graph.nodes import Location
from radixlang.keywords import ADAPTER_NAMES
from radixlang.state.expressions.builders import GEN_NAMES, gen, role, select
from radixlang.state.state import State
from radixlang.state.tracing import is_boundary
from radixlang.suggestions import shortened
from radixlang.templates.expressions import ValueBuilder, text_of
from radixlang.templates.source import UNDEFINED, Environment, Node, Source

Step: TypeAlias = "Callable[[State, Environment], None]"
T = TypeVar("T")


def build(tree: Node, source: Source) -> tuple[tuple[Step, ...], dict[str, object]]:
    """Steps and arguments of a parsed template."""
    builder = _Builder(source)
    steps = tuple(builder.steps(tree.children))
    source.check_declared()
    return steps, source.parameters


class _Builder(ValueBuilder):
    """One method for each kind of node: `step_x` returns a Step."""

    def steps(self, items: list[Node]) -> Iterator[Step]:
        before = ""
        for item in items:
            if item.data == "text" and before in ("role", "named_role"):
                token = item.children[0]  # the line break after a turn ends the turn's line
                item.children[0] = token.update(value=re.sub(r"\A[ \t]*\r?\n", "", str(token)))
            if item.data != "comment":
                yield self._at(item, getattr(self, f"step_{item.data}")(item))
            before = item.data

    def _at(self, item: Node, step: Step) -> Step:
        location = Location(self.source.file, item.meta.line)

        def located(state: State, env: Environment) -> None:
            state._recorder.at = location
            try:
                step(state, env)
            except RadixlangError as error:
                if not isinstance(error, (ParameterError, InvalidConstraintError)):
                    raise
                raise self.source.error(str(error), item.meta.start_pos) from error
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                if is_boundary(error):
                    raise
                said = f"{type(error).__name__}: {error}"
                raise self.source.error(said, item.meta.start_pos) from error

        return located

    # -- steps --------------------------------------------------------------------------

    def step_text(self, item: Node) -> Step:
        (token,) = item.children
        starts, ends = self.source.lonely
        text = str(token)
        if token.end_pos in starts:
            text = text.rstrip(" \t") if "\n" in text or token.start_pos == 0 else text.strip(" \t")
        if token.start_pos in ends:
            text = re.sub(r"\A[ \t]*\n?", "", text)
        return _append(text)

    def step_raw(self, item: Node) -> Step:
        inner = re.sub(r"\A\{%\s*raw\s*%\}|\{%\s*endraw\s*%\}\Z", "", str(item.children[0]))
        return _append(inner)

    def step_output(self, item: Node) -> Step:
        value = self.value(item.children[0], shown=True)

        def output(state: State, env: Environment) -> None:
            state += format(value(state, env), "")

        return output

    def step_gen(self, item: Node) -> Step:
        name, kind, *options = item.children
        made = self.type(kind) if kind is not None else None
        values = self.options(options, GEN_NAMES, "gen")
        if name is not None:
            self.source.bound.add(str(name))
        if "grammar" in values or "constraint" in values:
            self.source.binds_captures = True  # by names that the grammar has

        def generate(state: State, env: Environment) -> None:
            given = {key: value(state, env) for key, value in values.items()}
            state += self._guarded(item, lambda: gen(name and str(name), made, **given))

        return generate

    def step_select(self, item: Node) -> Step:
        name, choices, *options = item.children
        value = self.value(choices)
        values = self.options(options, ("scorer", *ADAPTER_NAMES), "select")
        self.source.bound.add(str(name))

        def choose(state: State, env: Environment) -> None:
            given = {key: option(state, env) for key, option in values.items()}
            found = value(state, env)
            state += self._guarded(item, lambda: select(str(name), found, **given))

        return choose

    def _guarded(self, item: Node, make: Callable[[], T]) -> T:
        """Call `make`; its errors are shown at the option's place in the template."""
        try:
            return make()
        except (ParameterError, ConstraintError, TypeError) as error:
            raise self.source.error(str(error), item.meta.start_pos) from error

    def step_role(self, item: Node) -> Step:
        name = re.sub(r"[{%}\s]", "", str(item.children[0]))
        return self._turn(name, item.children[1])

    def step_named_role(self, item: Node) -> Step:
        return self._turn(text_of(item.children[0]), item.children[1])

    def _turn(self, name: str, body: Node) -> Step:
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

    def step_adapter(self, item: Node) -> Step:
        name, *options, body = item.children
        token = name.children[0]
        adapter = text_of(token) if token.type == "STRING" else str(token)
        values = self.options(options, ("scale", "layers"), "adapter")
        steps = tuple(self.steps(body.children))

        def adapt(state: State, env: Environment) -> None:
            given = {key: value(state, env) for key, value in values.items()}
            block = self._guarded(item, lambda: state.adapter(adapter, **given))
            with block:
                _run(steps, state, env)

        return adapt

    def step_cond(self, item: Node) -> Step:
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

    def step_loop(self, item: Node) -> Step:
        name, values, body = item.children
        value = self.value(values)
        steps = self._scoped(str(name), body)

        def loop(state: State, env: Environment) -> None:
            for each in self._listed(value(state, env), item):
                _run(steps, state, Environment({str(name): each}, env))

        return loop

    def _listed(self, found: object, item: Node) -> list[object]:
        """The list that a loop or a fork iterates over."""
        if not isinstance(found, Iterable):
            raise self.source.error(
                f"it goes through a list, got {shortened(found)}; give a list, or write [x]",
                item.meta.start_pos,
            )
        return list(found)

    def _scoped(self, name: str, body: Node) -> tuple[Step, ...]:
        fresh = name not in self.source.bound
        self.source.bound.add(name)
        steps = tuple(self.steps(body.children))
        if fresh:
            self.source.bound.discard(name)
        return steps

    def step_fork(self, item: Node) -> Step:
        head, body, join = item.children
        name = str(head.children[0]) if head.data == "fork_each" else None
        value = self.value(head.children[-1])
        steps = self._scoped(name, body) if name else tuple(self.steps(body.children))

        def fork(state: State, env: Environment) -> None:
            found = value(state, env)
            if name:
                each = self._listed(found, item)
            elif isinstance(found, int) or str(found).isdecimal():
                each = [None] * int(found)
            else:
                raise self.source.error(
                    f"a fork takes a number, got {shortened(found)}; for a branch an item write "
                    "{% fork x in list %}",
                    item.meta.start_pos,
                )
            group = state.fork(len(each))
            for branch, one in zip(group, each, strict=True):
                _run(steps, branch, Environment({name: one} if name else {}, env))
            if join.data == "join_text":
                state.join(group, text=True, separator=text_of(join.children[0]))
            else:
                state.join(group, *(str(name) for name in join.children if name is not None))

        return fork

    def step_set(self, item: Node) -> Step:
        name, expression = item.children
        value = self.value(expression)
        self.source.bound.add(str(name))

        def assign(state: State, env: Environment) -> None:
            env.names[str(name)] = value(state, env)

        return assign

    def step_include(self, item: Node) -> Step:
        source = self.source
        wanted = text_of(item.children[0])
        if source.folder is None:
            raise source.error("an include needs a folder to look in", item.meta.start_pos)
        path = source.folder / wanted
        if str(path) in (*source.including, source.file):
            raise source.error(f"{wanted!r} includes itself", item.meta.start_pos)
        if source.root is None or not path.resolve().is_relative_to(source.root.resolve()):
            raise source.error(
                f"{wanted!r} is not below {str(source.root)!r}, where includes are read from; move "
                "it there, or name a folder above both with load_template(path, root=folder)",
                item.meta.start_pos,
            )
        if not path.is_file():
            raise source.error(f"there is no template {str(path)!r}", item.meta.start_pos)
        including = (*source.including, source.file)
        inner = source.parse(source.read(path), str(path), path.parent, source.root, including)
        for name, default in inner.parameters.items():
            if name not in source.bound:
                source.parameters.setdefault(name, default)
                if default is inspect.Parameter.empty:
                    source.used.setdefault(name, item.meta.start_pos)
        source.bound |= inner.bound

        def include(state: State, env: Environment) -> None:
            _run(inner.steps, state, env)

        return include

    def step_args(self, item: Node) -> Step:
        declared: dict[str, object] = {}
        for argument in item.children:
            name, default = argument.children
            declared[str(name)] = (
                inspect.Parameter.empty if default is None else self._fixed(default)
            )
        known = self.source.parameters
        for name, default in declared.items():
            if default is inspect.Parameter.empty and known.get(name) is UNDEFINED:
                declared[name] = UNDEFINED
        self.source.declared = {*(self.source.declared or ()), *declared}
        self.source.parameters = {
            **declared,
            **{k: v for k, v in known.items() if k not in declared},
        }
        return lambda state, env: None

    def _fixed(self, expression: Node) -> object:
        """A default: an expression without names."""
        names = [node for node in expression.iter_subtrees() if node.data == "name"]
        if names:
            raise self.source.error(
                "a default cannot use names; write a string in quotes, a number or a list",
                names[0].meta.start_pos,
            )
        return self.value(expression)(None, Environment({}))  # type: ignore[arg-type]


def _run(steps: tuple[Step, ...], state: State, env: Environment) -> None:
    for step in steps:
        step(state, env)


def _append(text: str) -> Step:
    def append(state: State, env: Environment) -> None:
        state += text

    return append
