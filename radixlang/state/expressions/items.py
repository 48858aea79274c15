"""The items of expressions: text, generations, choices, turns, and values not known yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import isfunction
from typing import TYPE_CHECKING, Generic, NoReturn, TypeAlias, TypeVar

from radixlang.errors import NeedsValueError, ParameterError
from radixlang.execution.recorder import Recorder
from radixlang.graph.nodes import Arg, Ref, Scorer
from radixlang.protocol import AdapterUse
from radixlang.sampling_params import SamplingParams
from radixlang.suggestions import shortened

if TYPE_CHECKING:
    from radixlang.constraints.specs import Constraint
    from radixlang.constraints.typed_values import Output
    from radixlang.state.expressions.thought import Think

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class GenItem:
    """A generation; `n` above 1 makes a group of branches, `think` a thought before it."""

    name: str | None
    params: SamplingParams
    overrides: tuple[tuple[str, object], ...]
    constraint: Constraint | None
    output: Output | None
    n: int = 1
    adapter: AdapterUse | None = None
    think: Think | None = None


@dataclass(frozen=True, slots=True)
class SelectItem:
    """A choice between options."""

    name: str | None
    options: tuple[str | Placeholder, ...] | Placeholder
    scorer: Scorer
    adapter: AdapterUse | None = None


@dataclass(frozen=True, slots=True)
class RoleOpen:
    """A turn opens."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleClose:
    """The open turn closes."""

    role: str


Item: TypeAlias = "str | Placeholder | GenItem | SelectItem | RoleOpen | RoleClose"


class Expr(Generic[T_co]):
    """A sequence of items; immutable, and usable any number of times.

    `T_co` is the type of the value of the one gen or select in it.
    """

    __slots__ = ("items",)

    def __init__(self, items: tuple[Item, ...]) -> None:
        self.items = items

    def __add__(self, other: Appendable) -> Expr[object]:
        return Expr(self.items + as_expr(other).items)

    def __radd__(self, other: Appendable) -> Expr[object]:
        return Expr(as_expr(other).items + self.items)

    def __repr__(self) -> str:
        return f"Expr({', '.join(map(repr, self.items))})"

    def __format__(self, spec: str) -> str:
        return str(self)

    def __str__(self) -> str:
        raise ParameterError(
            "gen(…), select(…) and roles cannot stand inside a string, such as an f-string or '%s' "
            "% …; write 'text' + gen(…) + 'text' (repr(…) shows an expression)"
        )


Appendable: TypeAlias = "str | Placeholder | Expr[object]"


def as_expr(value: Appendable) -> Expr[object]:
    """Text, placeholder or expression as an Expr."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (str, Placeholder)):
        return Expr((value,))
    shown = f"the function {value.__name__}" if isfunction(value) else shortened(value)
    raise ParameterError(
        f"cannot append {shown} of type {type(value).__name__}; {_instead_of(value)}"
    )


def _instead_of(value: object) -> str:
    """What to write instead of a value that cannot be appended."""
    if isfunction(value):
        return f"call it, as in {value.__name__}(…)"
    if isinstance(value, (list, tuple)):
        return "join its parts with +, or append them one by one; group += […] is for a fork"
    if isinstance(value, (bytes, bytearray)):
        return "append text: value.decode()"
    if value is None:
        return "append text, gen(…), select(…) or a role; a function without a return gives None"
    instead = getattr(value, "_instead_of_appending", None)
    if instead is not None:
        return str(instead())
    return "append text, gen(…), select(…) or a role, and str(…) anything else"


class Placeholder:
    """A value that is not known yet. It interpolates in f-strings and concatenates with +;
    anything that needs the value itself (comparison, len, iteration, int…) raises NeedsValueError.
    """

    __slots__ = ("part", "recorder")

    def __init__(self, recorder: Recorder, part: Ref | Arg) -> None:
        self.recorder = recorder
        self.part = part

    def __format__(self, spec: str) -> str:
        part = self.part
        if isinstance(part, Ref):
            return self.recorder.mark(Ref(part.block, part.slot, part.name, spec))
        return self.recorder.mark(Arg(part.name, spec))

    def __add__(self, other: Appendable) -> Expr[object]:
        return as_expr(self) + other

    def __radd__(self, other: Appendable) -> Expr[object]:
        return as_expr(other) + as_expr(self)

    def __repr__(self) -> str:
        kind = "generated value" if isinstance(self.part, Ref) else "argument"
        return f"<{kind} {self.part.name!r}, not known yet>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        self._need(f"attribute {name!r}")

    def _need(self, what: str = "its value") -> NoReturn:
        raise NeedsValueError(f"{what} of {self!r} was asked for")


def _needs(name: str) -> Callable[..., NoReturn]:
    def method(self: Placeholder, *_: object, **__: object) -> NoReturn:
        self._need(name)

    method.__name__ = name
    return method


_REFUSED = """
    eq ne lt le gt ge hash bool len iter contains getitem int float index str bytes complex mul rmul
    sub rsub truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg pos abs round and or xor call
    next enter fspath
"""
for _name in _REFUSED.split():
    setattr(Placeholder, f"__{_name}__", _needs(f"__{_name}__"))
