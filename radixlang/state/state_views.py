"""Views of a state: a line, a tree, a page, a cell of a notebook, or a live view."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixlang.execution.run import Run
from radixlang.state.tracing import Host

if TYPE_CHECKING:
    from radixlang.views.live import LiveView


class Viewed:
    """The methods that show a State. Views read the run and change nothing in it."""

    __slots__ = ()

    _host: Host

    def _run(self) -> Run:
        raise NotImplementedError

    def __repr__(self) -> str:
        from radixlang.state.state_line import state_line

        state: Any = self
        return state_line(state)

    def _repr_html_(self) -> str:
        from radixlang.views.page import run_to_cell

        return run_to_cell(self._run())

    def show(self, *, color: bool | None = None) -> str:
        """The tree of this run for a terminal; tokens coloured cached, forced, sampled."""
        from radixlang.views.trace_builder import trace_of
        from radixlang.views.trace_text import trace_to_text

        return trace_to_text(trace_of(self._run()), color=color)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The current view of this run, which may have failed or still run, as one HTML page.

        Args:
            path: a file to write the page to, as UTF-8.
        """
        from radixlang.views.page import run_to_page

        page = run_to_page(self._run())
        if path is not None:
            Path(path).write_text(page, encoding="utf-8", errors="replace")
        return page

    def live(
        self, path: str | os.PathLike[str] | None = None, *, every_s: float = 1.0
    ) -> LiveView | None:
        """Show this run while it goes on, and once more when it has ended; returns at once.

        Args:
            path: the file for the page, which reloads itself in a browser. None: the notebook's
                cell that runs this.
            every_s: seconds between two drawings; more if drawing takes long.

        `s.live("page.html")` is a line of a program; `radixlang.on_run(State.live, when="start")`
        shows every run in its cell. While a program is traced it does nothing.
        """
        from radixlang.views.live import follow

        return follow(self._run(), path, every_s) if isinstance(self._host, Run) else None
