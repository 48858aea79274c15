"""Turns of a conversation: they open and close on a state, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixlang.errors import ParameterError, StateClosedError
from radixlang.graph.nodes import RoleBegin, RoleEnd
from radixlang.protocol import check_role

if TYPE_CHECKING:
    from radixlang.state.state import State


class RoleContext:
    """One turn as a with block; it is closed even if the body raises."""

    __slots__ = ("_name", "_state")

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name

    def __enter__(self) -> State:
        return self._state.role_begin(self._name)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        state = self._state
        try:
            state._check_open()
        except StateClosedError:
            if error is None:
                raise
            return
        if error is None or state._role == self._name:
            state.role_end(self._name)


def begin_role(state: State, role: str) -> State:
    """Open a turn; raises a ParameterError inside an open one."""
    check_role(role)
    state._check_goes_on()
    if state._role is not None:
        raise ParameterError(
            f"turn {role!r} opened inside the open turn {state._role!r}; close that one first"
        )
    state._host.record(state._block, RoleBegin(role, state._recorder.location()))
    state._role = role
    return state


def end_role(state: State, role: str) -> State:
    """Close the open turn; raises a ParameterError if it is not this one."""
    state._check_goes_on()
    if state._role != role:
        is_open = f"{state._role!r} is open" if state._role else "no turn is open"
        raise ParameterError(f"turn {role!r} cannot close: {is_open}; open it first, or write "
                             f"with s.{role}(): …")  # fmt: skip
    state._host.record(state._block, RoleEnd(role, state._recorder.location()))
    state._role = None
    return state
