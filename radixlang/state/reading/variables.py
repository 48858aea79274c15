"""Variables of a state: its own, and those that its ancestors had bound when it was forked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixlang.errors import ParameterError, UnknownVariableError
from radixlang.execution.run import Run
from radixlang.graph.nodes import Ref
from radixlang.state.reading.bound_values import Bound, Captured, captures_of
from radixlang.state.tracing import Host
from radixlang.suggestions import nearest

if TYPE_CHECKING:
    from radixlang.constraints.specs import Constraint

Names = dict[str, Bound]
Outer = tuple[Names, "Outer | None"]


def unknown_variable(name: str, names: list[str], where: str) -> UnknownVariableError:
    """The error of a name that is not bound, with the nearest bound one."""
    close = nearest(name, names)
    hint = f"did you mean {close!r}? " if close else ""
    known = ", ".join(map(repr, names)) or "none yet"
    return UnknownVariableError(f"no variable {name!r} in {where}; {hint}bound: {known}")


class Variables:
    """Names and their values. A fork freezes them into a layer that its branches see."""

    __slots__ = ("_birth", "_host", "_names", "_outer")

    def __init__(self, host: Host, outer: Outer | None = None) -> None:
        self._host = host
        self._outer = self._birth = outer
        self._names: Names | None = None

    def bind(self, name: str | None, value: Bound) -> None:
        """Bind a name from here on; None binds nothing."""
        if name is not None:
            if self._names is None:
                self._names = {}
            self._names[name] = value
            if isinstance(self._host, Run):
                self._host.readers.notify()

    def bind_generation(self, name: str | None, ref: Ref, constraint: Constraint | None) -> None:
        """Bind a generation, and the parts that its constraint captures."""
        self.bind(name, ref)
        if constraint is not None:
            for part in captures_of(constraint):
                self.bind(part, Captured(ref, constraint, part))

    def own_ref(self, name: str) -> Ref | None:
        """The value node behind a variable bound since the fork; None if there is none."""
        if name not in self.names(own=True):
            return None
        found = self.lookup(name)
        if isinstance(found, Captured):
            raise ParameterError(
                f"the capture {name!r} cannot be joined; read it from the branches, "
                f"or join the generation it is part of"
            )
        return found if isinstance(found, Ref) else getattr(found, "ref", None)

    def freeze(self) -> Outer | None:
        """The current names, for a child to see; this branch's later ones stay its own."""
        if self._names:
            self._outer = (self._names, self._outer)
            self._names = None
        return self._outer

    def lookup(self, name: str) -> Bound:
        """What a name is bound to.

        Raises:
            UnknownVariableError: nothing.
        """
        if self._names is not None and name in self._names:
            return self._names[name]
        outer = self._outer
        while outer is not None:
            if name in outer[0]:
                return outer[0][name]
            outer = outer[1]
        raise unknown_variable(name, self.names(), f"program {self._host.name!r}")

    def names(self, own: bool = False) -> list[str]:
        """Variables visible here in order of binding; `own`: only those bound since the fork."""
        layers = [self._names or {}]
        outer = self._outer
        while outer is not None and not (own and outer is self._birth):
            layers.append(outer[0])
            outer = outer[1]
        return list(dict.fromkeys(name for layer in reversed(layers) for name in layer))
