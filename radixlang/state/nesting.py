"""The interface by which a state runs a nested program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol

if TYPE_CHECKING:
    from radixlang.state.state import State

P = ParamSpec("P")


class NestedProgram(Protocol[P]):
    """A program that can run on a state of another."""

    name: str

    @property
    def function(self) -> Callable[Concatenate[State, P], object]:
        """The function that is called."""
        ...

    def call_with(self, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the function on a state of another program."""
        ...

    def acall_with(
        self, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """Like `call_with`; what the function awaits is awaited here."""
        ...
