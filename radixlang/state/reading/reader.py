"""Reading a state: values, texts, usage. Reading waits; it never changes the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol

from radixlang.errors import NeedsValueError, ParameterError, ValueParseError
from radixlang.execution.branch_run import Stream
from radixlang.execution.pieces import Cell, Choice
from radixlang.execution.run import Run
from radixlang.graph.nodes import Block, Ref
from radixlang.json_types import TypeForm
from radixlang.protocol import Branch, Completion, NextToken, Usage, sum_usage
from radixlang.reply import Reply
from radixlang.state.expressions.items import Placeholder
from radixlang.state.reading.bound_values import Bound, Captured, Constant, Joined, PendingList
from radixlang.state.reading.cell_steps import follow_cell, follow_cell_async
from radixlang.state.reading.standpoints import INSIDE, Standpoint
from radixlang.state.tracing import Host


class BoundNames(Protocol):
    """Variables, as they are read."""

    def names(self, own: bool = False) -> list[str]:
        """Variables visible here."""
        ...

    def lookup(self, name: str) -> Bound:
        """What a name is bound to."""
        ...


# Any below is a value of the program, of the type that its gen or its Python gave it.


class Reader:
    """Reads one branch, from a standpoint (see `standpoints`)."""

    __slots__ = ("block", "host", "standpoint", "variables")

    def __init__(
        self, host: Host, block: Block, variables: BoundNames, standpoint: Standpoint = INSIDE
    ) -> None:
        self.host, self.block = host, block
        self.variables, self.standpoint = variables, standpoint

    # -- values -------------------------------------------------------------------------

    def value(self, name: str) -> Any:
        """The value of a variable; waits for it."""
        found = self.variables.lookup(name)
        if isinstance(found, Ref):
            return self.read(found)
        if isinstance(found, Constant):
            return found.value
        return self.joined(found) if isinstance(found, Joined) else self._captured(found)

    def _captured(self, found: Captured) -> str | None:
        return found.part_of(self.read(found.ref))

    def joined(self, found: Joined) -> Any:
        """The values of joined branches; waits for them."""
        if isinstance(self.host, Run):
            return self.read(found.ref)
        whole = Placeholder(self.host.recorder, found.ref)
        if not found.refs:
            return whole
        values = [None if ref is None else self.read(ref) for ref in found.refs]
        return PendingList(values, whole)

    def read(self, ref: Ref) -> Any:
        """The value of a value node; waits for it."""
        run = self.host
        if not isinstance(run, Run):
            return run.read(ref)
        run.check_may_read(ref)
        cell = self.standpoint.look(run, self.block, ref)
        run.readers.wait(lambda: cell.done)
        return run.outcome(self.block, cell)

    async def value_async(self, name: str) -> Any:
        """Like `value`, without blocking the event loop."""
        found = self.variables.lookup(name)
        if isinstance(found, Constant):
            return found.value
        value = await self._read_async(found if isinstance(found, Ref) else found.ref)
        return found.part_of(value) if isinstance(found, Captured) else value

    async def _read_async(self, ref: Ref) -> Any:
        run = self.host
        if not isinstance(run, Run):
            return run.read(ref)
        cell = self.standpoint.look(run, self.block, ref)
        await run.readers.wait_async(lambda: cell.done)
        return run.outcome(self.block, cell)

    def values(self) -> dict[str, Any]:
        """Every variable and its value; waits for all of them."""
        return {name: self.value(name) for name in self.variables.names()}

    # -- text ---------------------------------------------------------------------------

    async def text_async(self) -> str:
        """The whole prompt so far, without blocking the event loop."""
        return (await self._settled_async()).text()

    async def _settled_async(self) -> Stream:
        run = self.run()
        self.standpoint.boundary(run, self.block, "the text")
        length = len(self.block.nodes)
        await run.readers.wait_async(lambda: self._is_settled(length))
        return self._checked_stream()

    def tokens(self) -> tuple[int, ...]:
        """Token ids of the prompt so far, pending text tokenised; only while the program runs."""
        return _branch_of(self.settled(), "tokens()").tokens().result()

    def next_token(self, among: Sequence[str | int] | None, top: int | None) -> Reply[NextToken]:
        """Ask for the next token's distribution; the reply is not waited for."""
        run = self.run()
        run.readers.check_may_block(False, "the next token", "read it with await s.anext_token(…)")
        return _branch_of(self.settled(), "next_token()").next_token(among, top)

    async def next_token_async(
        self, among: Sequence[str | int] | None, top: int | None
    ) -> NextToken:
        """The next token's distribution, without blocking the event loop."""
        stream = await self._settled_async()
        return await asyncio.wrap_future(_branch_of(stream, "anext_token()").next_token(among, top))

    def settled(self) -> Stream:
        """The stream, once everything appended so far is in the prompt."""
        run = self.run()
        is_ready = self._is_settled(len(self.block.nodes))
        run.readers.check_may_block(is_ready, "the text", "await s.atext() first")
        self.standpoint.boundary(run, self.block, "the text")
        length = len(self.block.nodes)
        run.readers.wait(lambda: self._is_settled(length))
        return self._checked_stream()

    def _is_settled(self, length: int) -> bool:
        stream = self.run().streams.get(self.block.id)
        if stream is None:
            return False
        return stream.error is not None or (
            stream.pos >= length and not stream.outstanding and _base_settled(stream)
        )

    def _checked_stream(self) -> Stream:
        run = self.run()
        error = run.loop.error_of(self.block)
        if error is not None:
            raise error
        return run.streams[self.block.id]

    # -- streaming ----------------------------------------------------------------------

    def stream(self, name: str) -> Iterator[str]:
        """Pieces of a variable's text as they arrive; raises the error that ends it, if any."""
        run, cell = self._cell(name, f"read it with async for … in s.astream({name!r})")
        return follow_cell(run, self.block, cell)

    def stream_async(self, name: str) -> AsyncIterator[str]:
        """Like `stream`, for a caller on an event loop."""
        run, cell = self._cell(name)
        return follow_cell_async(run, self.block, cell)

    def stop(self, name: str) -> None:
        """End the generation of a variable, or those that are joined in it."""
        refs = _refs_of(self.variables.lookup(name))
        if not refs:
            raise ParameterError(f"{name!r} was set by Python; only a generation can be stopped")
        run = self.run()
        for ref in refs:
            run.stop_cell(run.loop.cell(ref.block, ref.slot, ref.name))

    # -- results of generations ---------------------------------------------------------

    def completion(self, name: str) -> Completion:
        """The Completion behind a variable: tokens, log-probabilities, usage."""
        cell = self._finished_cell(name)
        if cell.completion is None:
            raise ParameterError(
                f"{name!r} was not made by a gen; what a select chose is s.choice({name!r})"
            )
        return cell.completion

    def choice(self, name: str) -> Choice:
        """The outcome of a select: scores, distribution and ties."""
        cell = self._finished_cell(name)
        if cell.choice is None:
            raise ParameterError(
                f"{name!r} was not made by a select; of a gen there is s.completion({name!r})"
            )
        return cell.choice

    def usage(self, name: str | None = None) -> Usage:
        """Tokens and times of one generation, or their sums over the program so far."""
        if name is not None:
            return self.completion(name).usage
        cells = tuple(self.run().cells.values())
        return sum_usage([cell.completion.usage for cell in cells if cell.completion is not None])

    def _cell(self, name: str, instead: str = "") -> tuple[Run, Cell]:
        """The run and the cell of a variable; `instead`: what an async program should write."""
        found = self.variables.lookup(name)
        if not isinstance(found, Ref):
            raise ParameterError(
                f"{name!r} is not one generation: it was joined or set by Python; read "
                f"s[{name!r}], or ask the branch that generated it"
            )
        run = self.run()
        if instead:
            is_ready = run.loop.cell(found.block, found.slot, found.name).done
            run.readers.check_may_block(is_ready, repr(name), instead)
        return run, self.standpoint.look(run, self.block, found)

    def _finished_cell(self, name: str) -> Cell:
        run, cell = self._cell(name, f"await s.aget({name!r}) first")
        run.readers.wait(lambda: cell.done)
        run.outcome(self.block, cell)
        return cell

    # -- the run ------------------------------------------------------------------------

    def await_program(self) -> None:
        """Wait for the program's function, if the reader is another thread."""
        if isinstance(self.host, Run):
            self.standpoint.await_program(self.host)

    def run(self) -> Run:
        """The run that is read; a trace has none."""
        if isinstance(self.host, Run):
            return self.host
        raise NeedsValueError("a trace has no texts and values yet")


def _refs_of(found: Bound) -> list[Ref]:
    """The generations of a variable: one, those of joined branches, or none."""
    if isinstance(found, Constant):
        return []
    if isinstance(found, Joined):
        return [ref for ref in found.refs if ref is not None] or [found.ref]
    return [found if isinstance(found, Ref) else found.ref]


def converted(value: object, kind: TypeForm) -> Any:  # of that type
    """The value converted to the type; unchanged if there is no type or no value yet.

    Raises:
        ValueParseError: the text is not a value of that type.
    """
    if kind is None or isinstance(value, Placeholder):
        return value
    from radixlang.constraints.typed_values import output_for

    try:
        return output_for(kind).convert(value)
    except ValueParseError as error:
        shown = getattr(kind, "__name__", str(kind))
        raise ValueParseError(
            f"{error}; gen(…, {shown}) would have generated one", error.partial
        ) from error


def _branch_of(stream: Stream, what: str) -> Branch:
    """The running branch of a stream; raises the error of a read that needs one."""
    if stream.branch is None:
        raise ParameterError(f"{what} reads a running branch; call it inside the program")
    if stream.held:
        raise ParameterError(
            f"the chat template writes the content of this {stream.roles[-1]!r} turn in its "
            f"own form once the turn is closed; call {what} after that"
        )
    return stream.branch


def _base_settled(stream: Stream) -> bool:
    base = stream.base
    while base is not None:
        for piece in base.pieces[: stream.base_length]:
            if isinstance(piece, Cell) and not piece.done:
                return False
        stream, base = base, base.base
    return True
