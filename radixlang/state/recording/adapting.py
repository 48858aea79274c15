"""Which adapter computes what a state appends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from radixlang.errors import StateClosedError
from radixlang.graph.nodes import Adapt
from radixlang.protocol import AdapterUse

if TYPE_CHECKING:
    from radixlang.state.state import State


@contextmanager
def adapted(state: State, use: AdapterUse | None) -> Iterator[State]:
    """What is appended in the block is computed with an adapter; None changes nothing."""
    if use is None or use == state._adapter:
        yield state
        return
    before = state._adapter
    state._check_goes_on()
    record_adapter(state, use)
    try:
        yield state
    except BaseException:
        state._adapter = before
        _leave_failed(state, before)
        raise
    record_adapter(state, before)


def record_adapter(state: State, use: AdapterUse | None) -> None:
    """Go on with an adapter, or (None) with the run's own default."""
    state._adapter = use
    state._host.record(state._block, Adapt(use, state._recorder.location()))


def _leave_failed(state: State, before: AdapterUse | None) -> None:
    """End the adapter's block after an error of the program's own, unless the state has ended."""
    try:
        state._check_open()
    except StateClosedError:
        return
    record_adapter(state, before)
