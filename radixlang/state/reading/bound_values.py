"""What a variable of a state is bound to: a value node, or one of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from radixlang.errors import NeedsValueError
from radixlang.graph.nodes import Ref

if TYPE_CHECKING:
    from radixlang.constraints.specs import Constraint


class Constant:
    """A value that Python bound with `s[name] = value`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True, slots=True)
class Captured:
    """A named part of a generation under its constraint; searched in the text when it is read."""

    ref: Ref
    constraint: Constraint
    name: str

    def part_of(self, text: object) -> str | None:
        """The captured part of a generation's text; None if the text has no such part."""
        from radixlang.constraints.specs import match  # costs the import of the language 10 ms

        if not isinstance(text, str):
            raise NeedsValueError(f"the capture {self.name!r} of {text!r} was asked for")
        return (match(self.constraint, text).captures or {}).get(self.name)


# The values are of the types that the program asked for in each gen; no checker knows them here.


class Joined(Sequence[Any]):
    """The values of one variable over a group's branches; reading the first waits for all."""

    __slots__ = ("_read", "ref", "refs")

    def __init__(
        self, read: Callable[[Joined], Any], ref: Ref, refs: tuple[Ref | None, ...]
    ) -> None:
        self._read = read
        self.ref = ref
        self.refs = refs

    @property
    def value(self) -> Any:
        """The list, with None for a branch that lacks the variable or has failed; the reducer's
        value if there is a reducer. Waits for it."""
        return self._read(self)

    @overload
    def __getitem__(self, key: int) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Any]: ...
    def __getitem__(self, key: int | slice) -> Any:
        return self.value[key]

    def __len__(self) -> int:
        return len(self.refs) or len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, Joined) else other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<joined {self.ref.name!r} of {len(self.refs)} branches>"


class PendingList(list[object]):
    """A joined list while tracing: in a text it becomes a reference to the whole list."""

    def __init__(self, values: list[object], whole: object) -> None:
        super().__init__(values)
        self._whole = whole

    def __format__(self, spec: str) -> str:
        return format(self._whole, spec)

    def __str__(self) -> str:
        return format(self._whole)


Bound: TypeAlias = Ref | Constant | Captured | Joined


def captures_of(constraint: Constraint) -> tuple[str, ...]:
    """Names that a constraint captures."""
    from radixlang.constraints.specs import Capture, Grammar
    from radixlang.constraints.specs import Sequence as Parts

    if isinstance(constraint, Grammar):
        return constraint.captures
    if isinstance(constraint, Parts):
        return tuple(part.name for part in constraint.parts if isinstance(part, Capture))
    return ()
