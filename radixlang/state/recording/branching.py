"""Branches of a state: they start in a fork, and the state goes on from one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from radixlang.errors import ParameterError, StateClosedError
from radixlang.graph.nodes import (
    Adopt,
    Answer,
    Contrasted,
    Fork,
    Gen,
    OnError,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
)
from radixlang.state.recording.adapting import record_adapter
from radixlang.state.recording.groups import ForkGroup
from radixlang.suggestions import shortened

if TYPE_CHECKING:
    from radixlang.state.state import State


def fork(state: State, n: int, on_error: OnError) -> ForkGroup:
    """n branches that start where a state is."""
    state._check_goes_on()
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        many = "; for a branch an item: s.fork(len(items))" if isinstance(n, (list, tuple)) else ""
        raise ParameterError(
            f"fork needs a number of branches of at least 1, got {shortened(n)}{many}"
        )
    if on_error not in ("cancel", "collect"):
        raise ParameterError(f'on_error must be "cancel" or "collect", got {on_error!r}')
    outer = state._variables.freeze()
    blocks = state._recorder.new_blocks(state._block, "fork", n)
    state._host.record(state._block, Fork(range(blocks[0].id, blocks[0].id + n), on_error,
                      location=state._recorder.location()))  # fmt: skip
    children = [type(state)(state._host, block, outer, state._role) for block in blocks]
    for child in children:
        child._adapter = state._adapter
    return ForkGroup(state, children)


def adopt(state: State, group: ForkGroup, index: int) -> State:
    """Continue where a branch of a group ended; the others end."""
    state._check_open()
    child = group[index]
    if group.parent is not state or child._closed is not None:
        raise StateClosedError("adopt needs a branch of this state that is not joined yet")
    if any(isinstance(node, (Text, Gen, Contrasted, Answer, Select, RoleBegin, RoleEnd))
           for node in group.nodes_since_fork()):  # fmt: skip
        raise ParameterError("this state has gone on since the fork; adopt before appending")
    for name in child.names(own=True):
        state._variables.bind(name, child._variables.lookup(name))
    state._samples = None
    state._host.record(state._block, Adopt(child._block.id, state._recorder.location()))
    state._role = child._role
    if child._adapter != state._adapter:
        record_adapter(state, state._adapter)
    group.close("has been joined")
    return state


def choose(state: State, name: str, index: int | Callable[[list[Any]], int]) -> State:
    """Continue from one sample; a function gets the samples' values."""
    group = samples_of(state, name)
    picked = index if isinstance(index, int) else index(list(state[name]))
    return adopt(state, group, picked)


def samples_of(state: State, name: str) -> ForkGroup:
    """The group of branches of samples that wait for a choice."""
    if state._samples is None or state._samples[0] != name:
        raise ParameterError(
            f"no samples of {name!r} wait for a choice here; append gen({name!r}, n=…) first"
        )
    return state._samples[1]
