"""Variables of a state: its own, and those its ancestors had bound when it was forked."""

from __future__ import annotations

from typing import Any

from radixlang.reading import Reading

Names = dict[str, Any]
Outer = tuple[Names, Any]  # (names, outer Outer or None)


class Constant:
    """A value that Python bound with `s[name] = value`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Named(Reading):
    """The naming half of a State. A fork freezes the parent's names into a layer that both see."""

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

    def _freeze_names(self) -> Outer | None:
        """Names as they are now, for a child to see; later bindings of ours stay ours."""
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
        known = ", ".join(map(repr, self.names())) or "none yet"
        raise KeyError(f"no variable {name!r} in program {self._recorder.name!r}; bound: {known}")

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
        """Bind a value of Python to a variable of this branch."""
        self._check_open()
        self._bind(name, Constant(value))
