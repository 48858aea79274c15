"""The state of a program for the reader of its stream, on another thread.

The program's own thread appends; the reader only reads, and waits for values that the program has
not reached yet.
"""

from __future__ import annotations

from radixlang.execution.run import Run
from radixlang.state.reading.bound_values import Bound
from radixlang.state.reading.reader import Reader
from radixlang.state.reading.standpoints import OUTSIDE
from radixlang.state.reading.variables import Variables
from radixlang.state.state import State


class StreamVariables:
    """Variables of a running program: looking one up waits until it is bound."""

    def __init__(self, run: Run, source: Variables) -> None:
        self._run = run
        self._source = source

    def names(self, own: bool = False) -> list[str]:
        """Variables that the program has bound so far."""
        return self._source.names(own)

    def lookup(self, name: str) -> Bound:
        """What a name is bound to; waits for the program to bind it, or to end."""
        run = self._run
        run.readers.wait(lambda: name in self._source.names() or run.program_ended)
        if run.error is not None and name not in self._source.names():
            raise run.error
        return self._source.lookup(name)


def stream_state(run: Run, source: State) -> State:
    """The same branch to read from another thread; appending to it is refused."""
    state = State(run, source._block)
    variables = StreamVariables(run, source._variables)
    state._reader = Reader(run, source._block, variables, OUTSIDE)
    state._returned = source._returned
    state._refusal = (
        f"only its own function appends to the state of program {run.name!r}; the reader of its "
        "stream can read it, stop an answer, or cancel it"
    )
    return state
