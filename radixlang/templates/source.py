"""A template's text and names: the text that its errors show, the names that are arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from radixlang.errors import TemplateError
from radixlang.suggestions import suggestion

if TYPE_CHECKING:
    from radixlang.state.state import State

_EMPTY = inspect.Parameter.empty


class NodePlace(Protocol):
    """The place of a node in the text."""

    line: int
    start_pos: int


class Node(Protocol):
    """A node of the syntax tree, lark's Tree. Which children are nodes and which are tokens or
    None is known to the grammar alone."""

    data: str
    children: list[Any]

    @property
    def meta(self) -> NodePlace: ...

    def iter_subtrees(self) -> Iterable[Node]: ...


class Parsed(Protocol):
    """A parsed template, as one that includes it needs it."""

    @property
    def steps(self) -> tuple[Callable[[State, Environment], None], ...]: ...
    @property
    def parameters(self) -> dict[str, object]: ...
    @property
    def bound(self) -> frozenset[str]: ...


class Undefined:
    """The value of an optional argument that was not given."""

    def __repr__(self) -> str:
        return "<not given>"


UNDEFINED = Undefined()


class Environment:
    """The names of a running template: arguments, loop variables, `set`."""

    def __init__(self, arguments: dict[str, object], outer: Environment | None = None) -> None:
        self.names = arguments
        self.outer = outer

    def find(self, name: str) -> object:
        """The value, innermost first; UNDEFINED if there is none."""
        scope: Environment | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return UNDEFINED


@dataclass
class Source:
    """A template's text, with its place for errors and its folder for includes.

    Includes are relative to `folder`, the file's, and must be below `root`, the folder of the
    template that was loaded.
    """

    text: str
    file: str
    folder: Path | None
    root: Path | None
    including: tuple[str, ...]
    lonely: tuple[set[int], set[int]]
    parse: Callable[[str, str, Path | None, Path | None, tuple[str, ...]], Parsed]
    read: Callable[[Path], str]
    parameters: dict[str, object] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    declared: set[str] | None = None
    binds_captures: bool = False
    used: dict[str, int] = field(default_factory=dict)

    def error(self, message: str, position: int) -> TemplateError:
        """An error at a place of the text, with the line and a caret."""
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        line = self.text[start : len(self.text) if end < 0 else end]
        number, column = self.text.count("\n", 0, position) + 1, position - start + 1
        caret = re.sub(r"[^\t]", " ", line[: column - 1]) + "^"
        place = f"{self.file}:{number}:{column}"
        error = TemplateError(f"{place}: {message}\n  {line}\n  {caret}")
        error.location = place
        return error

    def use(self, name: str, position: int, *, optional: bool = False) -> None:
        """Note that a name is read: unless the template binds it, it is an argument.

        `optional`: the template uses it with `default` or `is defined`, so it may be left out.
        """
        if name in self.bound:
            return
        self.used.setdefault(name, position)
        if optional and self.parameters.get(name, _EMPTY) is _EMPTY:
            self.parameters[name] = UNDEFINED
        self.parameters.setdefault(name, _EMPTY)

    def check_declared(self) -> None:
        """Raise a TemplateError for a name that is missing in `{% args %}`, if that tag is used."""
        known = [*(self.declared or ()), *sorted(self.bound)]
        for name, position in self.used.items():
            if self.declared is not None and name not in known and not self.binds_captures:
                hint = suggestion(name, known)
                raise self.error(f"{{% args %}} has no {name!r}, and nothing here binds it; {hint}",
                                 position)  # fmt: skip
