"""Programs run on a state of another: in a block of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol

from radixlang.errors import ParameterError
from radixlang.execution.run import Run
from radixlang.graph.nodes import Adopt, Block, Call, Scope, check_scope
from radixlang.suggestions import shortened

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

    def call_with(
        self, state: State, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """Run the function on a state of another program."""
        ...

    def acall_with(
        self, state: State, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Awaitable[object]:
        """Like `call_with`; what the function awaits is awaited here."""
        ...


def open_call(state: State, program: NestedProgram[...], scope: Scope) -> Block:
    """A new block for a program that is called at this place."""
    state._check_goes_on()
    check_scope(scope)
    if not hasattr(program, "call_with"):
        raise ParameterError(
            f"call takes a program, got {shortened(program)}; a program is a function under "
            "@radixlang.function, or radixlang.load_template(…)"
        )
    if state._role is not None and scope != "isolate":
        raise ParameterError(f"close the turn {state._role!r} before calling a program")
    block = state._recorder.new_blocks(state._block, "call", 1)[0]
    state._host.record(
        state._block, Call(block.id, program.name, scope, state._recorder.location())
    )
    return block


def close_call(state: State, child: State, scope: Scope) -> State:
    """The called program has returned: its text stays, or its branch is freed."""
    child._closed = "has returned"
    if scope == "inline":
        state._host.record(state._block, Adopt(child._block.id, state._recorder.location()))
        state._role = child._role
    elif isinstance(state._host, Run):
        state._host.flush()
        state._host.loop.close(child._block)
    return child
