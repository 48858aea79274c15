"""The state of a program for the reader of its stream, on another thread.

The program's own thread appends; the reader only reads. It waits for values that the program has
not reached yet, and never flushes nodes to the executor: how a turn opens depends on when they are
flushed, so only the program may do that.
"""

from __future__ import annotations

from typing import Any

from radixlang.errors import StateClosedError
from radixlang.execution.pieces import Cell
from radixlang.execution.run import Run
from radixlang.graph.nodes import Ref
from radixlang.state.groups import Joined
from radixlang.state.state import State
from radixlang.state.variables import Captured


class StreamState(State):
    """A State to read while its program runs; appending to it is refused."""

    __slots__ = ("_source",)

    def __init__(self, source: State) -> None:
        super().__init__(source._host, source._block)
        self._source = source

    @property
    def result(self) -> Any:
        """The return value of the program's function; waits for it."""
        run = self._run()
        run.readers.wait(lambda: run.program_ended)
        return self._source._result

    def names(self, own: bool = False) -> list[str]:
        """Variables that the program has bound so far."""
        return self._source.names(own)

    def _lookup(self, name: str) -> Any:
        run = self._run()
        run.readers.wait(lambda: name in self._source or run.program_ended)
        if run.error is not None and name not in self._source:
            raise run.error
        found = self._source._lookup(name)
        if isinstance(found, Captured):
            return Captured(self, found.ref, found.constraint, found.name)
        if isinstance(found, Joined):
            return Joined(self, found.ref, found.refs)
        return found

    def _read(self, ref: Ref) -> Any:
        run = self._run()
        cell = self._look(run, ref)
        run.readers.wait(lambda: cell.done)
        return run.outcome(self._block, cell)

    async def _read_async(self, ref: Ref) -> Any:
        run = self._run()
        cell = self._look(run, ref)
        await run.readers.wait_async(lambda: cell.done)
        return run.outcome(self._block, cell)

    def _look(self, run: Run, ref: Ref) -> Cell:
        return run.loop.cell(ref.block, ref.slot, ref.name)

    def _boundary(self, run: Run, reason: str) -> None:
        """Do nothing: values that the reader looks at are no boundary of the program."""

    def _check_open(self) -> None:
        raise StateClosedError(
            f"only its own function appends to the state of program {self._recorder.name!r}; the "
            "reader of its stream can read it, stop an answer, or cancel it"
        )
