"""A state in one line of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixlang.execution.run import Run
from radixlang.graph.nodes import Ref
from radixlang.views.spans import printable

if TYPE_CHECKING:
    from radixlang.state.state_values import Reading

_MOST_VALUE = 40  # characters of a value in one line
_MOST_NAMES = 6


def state_line(state: Reading) -> str:
    """A state in one line: its status and its values so far; waits for nothing."""
    host, block = state._host, state._block
    place = f", branch {list(block.path)}" if block.path else ""
    if not isinstance(host, Run):
        return f"<state of {host.name}{place}, traced without a model>"
    error = host.loop.error_of(block)
    stands = "finished" if host.finished else "running"
    if error is not None:
        stands = f"failed with {type(error.__cause__ or error).__name__}"
    names = state.names()
    values = [_named(state, host, name) for name in names[:_MOST_NAMES]]
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    held = f": {', '.join(values + more)}" if names else ""
    return f"<state of {host.name}{place}, {stands}{held}>"


def _named(state: Reading, run: Run, name: str) -> str:
    found = state._lookup(name)
    ref = found if isinstance(found, Ref) else getattr(found, "ref", None)
    if not isinstance(ref, Ref):
        return f"{name}={_short(found.value)}"
    cell = run.cells.get((ref.block << 24) | ref.slot)
    if cell is None or not cell.done or cell.error is not None or ref is not found:
        return name
    return f"{name}={_short(cell.value)}"


def _short(value: Any) -> str:
    shown = printable(repr(value))
    return shown if len(shown) <= _MOST_VALUE else shown[: _MOST_VALUE - 1] + "…"
