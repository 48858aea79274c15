"""A state shown: as a line, a tree, a page, a cell of a notebook, or a view that grows.

Views read the run and change nothing in it; they are imported once one is asked for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from radixlang.execution.run import Run
from radixlang.graph.nodes import Ref
from radixlang.state.reading.bound_values import Constant
from radixlang.state.reading.reader import Reader
from radixlang.views.spans import printable

if TYPE_CHECKING:
    from radixlang.views.live import LiveView

_MOST_VALUE = 40  # characters of a value in one line
_MOST_NAMES = 6


def tree(run: Run, color: bool | None) -> str:
    """The tree of a run for a terminal."""
    from radixlang.views.trace_builder import trace_of
    from radixlang.views.trace_text import trace_to_text

    return trace_to_text(trace_of(run), color=color)


def page(run: Run, path: str | os.PathLike[str] | None) -> str:
    """The view of a run as one HTML page, also written to a file if there is a path."""
    from radixlang.views.page import run_to_page

    found = run_to_page(run)
    if path is not None:
        Path(path).write_text(found, encoding="utf-8", errors="replace")
    return found


def cell(run: Run) -> str:
    """The view of a run as a cell of a notebook."""
    from radixlang.views.page import run_to_cell

    return run_to_cell(run)


def live(run: Run, path: str | os.PathLike[str] | None, every_s: float) -> LiveView | None:
    """A view of a run that is redrawn while the run goes on."""
    from radixlang.views.live import follow

    return follow(run, path, every_s)


def line(reader: Reader) -> str:
    """A state in one line: its status and its values so far; waits for nothing."""
    host, block = reader.host, reader.block
    place = f", branch {list(block.path)}" if block.path else ""
    if not isinstance(host, Run):
        return f"<state of {host.name}{place}, traced without a model>"
    error = host.loop.error_of(block)
    stands = "finished" if host.finished else "running"
    if error is not None:
        stands = f"failed with {type(error.__cause__ or error).__name__}"
    names = reader.variables.names()
    values = [_named(reader, host, name) for name in names[:_MOST_NAMES]]
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    held = f": {', '.join(values + more)}" if names else ""
    return f"<state of {host.name}{place}, {stands}{held}>"


def _named(reader: Reader, run: Run, name: str) -> str:
    found = reader.variables.lookup(name)
    if isinstance(found, Constant):
        return f"{name}={_short(found.value)}"
    if not isinstance(found, Ref):
        return name
    there = run.cells.get((found.block << 24) | found.slot)
    is_there = there is not None and there.done and there.error is None
    return f"{name}={_short(there.value)}" if there is not None and is_there else name


def _short(value: object) -> str:
    shown = printable(repr(value))
    return shown if len(shown) <= _MOST_VALUE else shown[: _MOST_VALUE - 1] + "…"
