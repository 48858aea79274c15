"""Reading a run while it goes on: pieces of one variable, of the text, or of everything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from radixlang.errors import refuse_pickling
from radixlang.execution.pieces import REPLACEMENT, Cell, num_completed, piece_text
from radixlang.execution.run import Run
from radixlang.execution.threads.timers import deadlines
from radixlang.graph.nodes import Ref
from radixlang.state.reading.cell_steps import Steps, T, cell_steps, read_steps, read_steps_async

if TYPE_CHECKING:
    from radixlang.state.state import State


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of a variable's text, with the variable's name and branch."""

    name: str | None
    branch: tuple[int, ...]
    text: str


class ProgramStream:
    """A program that runs while it is read. Iterating gives an Event for every piece.

    Every iterator raises the program's error at its end, if there is one. The program ends with
    its reader: when the last open iterator is left early, at the end of a `with` block, or when
    nothing refers to the stream, an iterator of it, or its `state` any more.
    """

    def __init__(self, run: Run, state: State) -> None:
        self._run = run
        self._state = state
        self._num_open = 0  # iterators that have begun and have not ended
        self._is_shared = False  # the state was handed out, and may be read without this object

    @property
    def state(self) -> State:
        """The program's state, to read and to cancel; reading waits for the program."""
        self._is_shared = True
        return self._state

    def __enter__(self) -> ProgramStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    async def __aenter__(self) -> ProgramStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        if not self._is_shared and not self._run.finished:
            # On another thread, because this one may hold a lock when garbage is collected.
            deadlines.after(0, self._run.cancel)

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a stream of a program", "pickle the events that came out of it")

    def __iter__(self) -> Iterator[Event]:
        return self._read(self._event_steps())

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._aread(self._event_steps())

    def text(self) -> Iterator[str]:
        """The prompt of the main branch as it grows."""
        return self._read(self._text_steps())

    def atext(self) -> AsyncIterator[str]:
        """Like `text`, for a caller on an event loop."""
        return self._aread(self._text_steps())

    def variable(self, name: str) -> Iterator[str]:
        """Pieces of one variable of the main branch; nothing if it is never bound."""
        return self._read(self._variable_steps(name))

    def avariable(self, name: str) -> AsyncIterator[str]:
        """Like `variable`, for a caller on an event loop."""
        return self._aread(self._variable_steps(name))

    def cancel(self) -> None:
        """End the program and free the memory that only it holds; nothing if it has ended."""
        if not self._run.finished:
            self._run.cancel()

    def _read(self, steps: Steps[T]) -> Iterator[T]:
        with self._reading():
            yield from read_steps(self._run, steps)

    async def _aread(self, steps: Steps[T]) -> AsyncIterator[T]:
        with self._reading():
            async for item in read_steps_async(self._run, steps):
                yield item

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Count an open iterator; leaving the last one early ends the program."""
        self._num_open += 1
        is_left = True
        try:
            yield
            is_left = False
        finally:
            self._num_open -= 1
            if is_left and not self._num_open:
                self.cancel()

    def _event_steps(self) -> Steps[Event]:
        run, position = self._run, 0
        while True:
            while position < len(run.nodes.events):
                cell, delta = run.nodes.events[position]
                position += 1
                if delta.text:
                    yield Event(cell.name, run.blocks[cell.block].path, delta.text)
            if run.finished and position >= len(run.nodes.events):
                break
            seen = position
            yield lambda: len(run.nodes.events) > seen or run.finished  # noqa: B023
        _raise(run)

    def _text_steps(self) -> Steps[str]:
        run, position = self._run, 0
        yield lambda: 0 in run.streams or run.finished
        stream = run.streams.get(0)
        broken = ""  # of a character that the next generation may complete
        while stream is not None:
            while position < len(stream.pieces):
                piece = stream.pieces[position]
                position += 1
                if isinstance(piece, Cell):
                    broken = yield from self._cell_text_steps(piece, broken)
                elif text := broken + piece_text(piece):
                    broken = ""
                    yield text
            if run.finished and position >= len(stream.pieces):
                break
            seen = position
            yield lambda: len(stream.pieces) > seen or run.finished  # noqa: B023
        if broken:
            yield broken
        _raise(run)

    def _cell_text_steps(
        self, cell: Cell, broken: str
    ) -> Generator[str | Callable[[], bool], None, str]:
        """Pieces of a cell after a broken character; returns the one at its end, if any."""
        run = self._run
        steps: Iterator[str | Callable[[], bool]] = cell_steps(run, run.blocks[cell.block], cell)
        if broken:  # the rest of the character is known only at the end
            yield lambda: cell.done
            run.outcome(run.blocks[cell.block], cell)
            steps = iter((broken[: len(broken) - num_completed(cell)] + cell.text,))
            broken = ""
        for step in steps:
            if callable(step):
                yield step
                continue
            text = broken + step
            whole = text.rstrip(REPLACEMENT)
            broken = text[len(whole) :]
            if whole:
                yield whole
        return broken

    def _variable_steps(self, name: str) -> Steps[str]:
        run, state = self._run, self._state
        yield lambda: name in state or run.finished
        if name in state:
            found = state._reader.variables.lookup(name)
            if isinstance(found, Ref):
                cell = run.loop.cell(found.block, found.slot, name)
                yield from cell_steps(run, run.blocks[found.block], cell)
            else:
                yield lambda: run.finished
                value = state[name]
                yield str(value)
        yield lambda: run.finished or name in state
        _raise(run)


def _raise(run: Run) -> None:
    if run.error is not None:
        raise run.error
