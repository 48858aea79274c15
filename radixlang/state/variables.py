"""Variables of a state: its own, and those that its ancestors had bound when it was forked."""

from __future__ import annotations

from typing import Any

from radixlang.errors import NeedsValueError, ParameterError, UnknownVariableError
from radixlang.execution.run import Run
from radixlang.graph.nodes import Ref
from radixlang.state.items import Expr
from radixlang.state.state_values import Reading
from radixlang.suggestions import nearest

Names = dict[str, Any]
Outer = tuple[Names, Any]  # (names, outer Outer or None)


class Constant:
    """A value that Python bound with `s[name] = value`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Captured:
    """A named part of a generation under its constraint; searched in the text when it is read."""

    __slots__ = ("constraint", "name", "ref", "state")

    def __init__(self, state: Named, ref: Ref, constraint: Any, name: str) -> None:
        self.state = state
        self.ref = ref
        self.constraint = constraint
        self.name = name

    @property
    def value(self) -> str | None:
        """The captured text; None if the text has no such part."""
        from radixlang.constraints.specs import match

        text = self.state._read(self.ref)
        if not isinstance(text, str):
            raise NeedsValueError(f"the capture {self.name!r} of {text!r} was asked for")
        return (match(self.constraint, text).captures or {}).get(self.name)


def unknown_variable(name: str, names: list[str], where: str) -> UnknownVariableError:
    """The error of a name that is not bound, with the nearest bound one."""
    close = nearest(name, names)
    hint = f"did you mean {close!r}? " if close else ""
    known = ", ".join(map(repr, names)) or "none yet"
    return UnknownVariableError(f"no variable {name!r} in {where}; {hint}bound: {known}")


def captures_of(constraint: Any) -> tuple[str, ...]:
    """Names that a constraint captures."""
    from radixlang.constraints.specs import Capture, Grammar, Sequence

    if isinstance(constraint, Grammar):
        return constraint.captures
    if isinstance(constraint, Sequence):
        return tuple(part.name for part in constraint.parts if isinstance(part, Capture))
    return ()


class Named(Reading):
    """The variables of a State. A fork freezes the parent's names into a layer that both see."""

    __slots__ = ("_birth", "_names", "_outer")

    _birth: Outer | None
    _names: Names | None
    _outer: Outer | None

    def _check_open(self) -> None:
        raise NotImplementedError

    def _bind(self, name: str | None, value: Any) -> None:
        if name is not None:
            if self._names is None:
                self._names = {}
            self._names[name] = value
            if isinstance(self._host, Run):
                self._host.readers.notify()

    def _bind_generation(self, name: str | None, ref: Ref, constraint: Any) -> None:
        """Bind a generation, and the parts that its constraint captures."""
        self._bind(name, ref)
        if constraint is not None:
            for part in captures_of(constraint):
                self._bind(part, Captured(self, ref, constraint, part))

    def _own_ref(self, name: str) -> Ref | None:
        """The value node behind a variable bound since the fork; None if there is none."""
        if name not in self.names(own=True):
            return None
        found = self._lookup(name)
        if isinstance(found, Captured):
            raise ParameterError(
                f"the capture {name!r} cannot be joined; read it from the branches, "
                f"or join the generation it is part of"
            )
        return found if isinstance(found, Ref) else getattr(found, "ref", None)

    def _freeze_names(self) -> Outer | None:
        """The current names, for a child to see; this branch's later ones stay its own."""
        if self._names:
            self._outer = (self._names, self._outer)
            self._names = None
        return self._outer

    def _lookup(self, name: str) -> Any:
        if self._names is not None and name in self._names:
            return self._names[name]
        outer = self._outer
        while outer is not None:
            if name in outer[0]:
                return outer[0][name]
            outer = outer[1]
        raise unknown_variable(name, self.names(), f"program {self._recorder.name!r}")

    def names(self, own: bool = False) -> list[str]:
        """Variables visible here in order of binding; `own`: only those bound since the fork."""
        layers = [self._names or {}]
        outer = self._outer
        while outer is not None and not (own and outer is self._birth):
            layers.append(outer[0])
            outer = outer[1]
        return list(dict.fromkeys(name for layer in reversed(layers) for name in layer))

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __setitem__(self, name: str, value: Any) -> None:
        """Bind a Python value to a variable of this branch."""
        self._check_open()
        if isinstance(value, Expr):
            raise ParameterError(
                f"s[{name!r}] = … binds a value of Python, and binds nothing that is generated; "
                f"write s += gen({name!r}, …), then read s[{name!r}]"
            )
        self._bind(name, Constant(value))
