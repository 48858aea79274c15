"""A turn of a conversation as a with block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixlang.errors import StateClosedError

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

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        state = self._state
        try:
            state._check_open()
        except StateClosedError:
            if error is None:
                raise
            return
        if error is None or state._role == self._name:
            state.role_end(self._name)
