"""Reading a state: values, texts, usage. Reading waits; it never changes the prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, NoReturn, TypeVar, overload

from radixlang.errors import (
    NeedsValueError,
    ParameterError,
    ProgramError,
    ValueParseError,
    refuse_pickling,
)
from radixlang.execution.branch_run import Stream
from radixlang.execution.pieces import Cell, Choice
from radixlang.execution.recorder import Recorder
from radixlang.execution.run import Run
from radixlang.graph.nodes import Block, Ref
from radixlang.protocol import Completion, Usage, sum_usage
from radixlang.state.items import Placeholder
from radixlang.state.state_views import Viewed
from radixlang.state.tracing import Host

T = TypeVar("T")


class Reading(Viewed):
    """The reading methods of a State."""

    __slots__ = ("_block", "_host", "_recorder")

    _host: Host
    _recorder: Recorder
    _block: Block

    def _lookup(self, name: str) -> Any:
        raise NotImplementedError

    def names(self, own: bool = False) -> list[str]:
        """Variables visible here."""
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        refuse_pickling(
            f"a state of program {self._recorder.name!r}",
            "pickle state.values() and state.text(), or radixlang.take_checkpoint(state)",
        )

    # -- values -------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The value of a variable; waits for it.

        Raises:
            UnknownVariableError: there is no such variable (also a KeyError).
            NeedsValueError: the value is not there yet, and waiting would stop the event loop on
                which this `async def` program runs; use `await s.aget(name)`.
            ProgramError: the first error of this program.
        """
        found = self._lookup(name)
        return self._read(found) if isinstance(found, Ref) else found.value

    @overload
    async def aget(self, name: str) -> Any: ...
    @overload
    async def aget(self, name: str, kind: type[T]) -> T: ...
    @overload
    async def aget(self, name: str, kind: Any) -> Any: ...
    async def aget(self, name: str, kind: Any = None) -> Any:
        """Like `s[name]`, or `s.get(name, kind)`, without blocking the event loop."""
        return converted(await self._aget(name), kind)

    async def _aget(self, name: str) -> Any:
        found = self._lookup(name)
        ref = found if isinstance(found, Ref) else getattr(found, "ref", None)
        if ref is None:
            return found.value
        if hasattr(found, "constraint"):  # a capture: await its generation, then search its text
            await self._read_async(ref)
            return found.value
        return await self._read_async(ref)

    def _read(self, ref: Ref) -> Any:
        return self._host.read(self._block, ref)

    async def _read_async(self, ref: Ref) -> Any:
        if not isinstance(self._host, Run):
            return self._host.read(self._block, ref)
        return await self._host.read_async(self._block, ref)

    def _look(self, run: Run, ref: Ref) -> Cell:
        return run.look(self._block, ref)

    def _boundary(self, run: Run, reason: str) -> None:
        run.boundary(self._block, reason)

    def values(self) -> dict[str, Any]:
        """Every variable and its value; waits for all of them."""
        found = {name: self[name] for name in self.names()}
        return {name: list(value) if _is_joined(value) else value for name, value in found.items()}

    # -- text ---------------------------------------------------------------------------

    def text(self) -> str:
        """The whole prompt with everything generated so far, markup of turns included."""
        return self._settled().text()

    async def atext(self) -> str:
        """Like `text()`, without blocking the event loop."""
        run = self._run()
        self._boundary(run, "the text")
        length = len(self._block.nodes)
        await run.readers.wait_async(lambda: self._is_settled(length))
        return self._checked_stream().text()

    def tokens(self) -> tuple[int, ...]:
        """Token ids of the prompt so far, pending text tokenised; only while the program runs."""
        stream = self._settled()
        if stream.branch is None:
            raise ParameterError("tokens() reads a running branch; call it inside the program")
        if stream.held:
            raise ParameterError(
                f"the chat template writes the content of this {stream.roles[-1]!r} turn in its "
                "own form once the turn is closed; call tokens() after that"
            )
        return stream.branch.tokens().result()

    def _settled(self) -> Stream:
        """The stream, once everything appended so far is in the prompt."""
        run = self._run()
        is_ready = self._is_settled(len(self._block.nodes))
        run.readers.check_may_block(is_ready, "the text", "await s.atext() first")
        self._boundary(run, "the text")
        length = len(self._block.nodes)
        run.readers.wait(lambda: self._is_settled(length))
        return self._checked_stream()

    def _is_settled(self, length: int) -> bool:
        stream = self._run().streams.get(self._block.id)
        if stream is None:
            return False
        return stream.error is not None or (
            stream.pos >= length and not stream.outstanding and _base_settled(stream)
        )

    def _checked_stream(self) -> Stream:
        run = self._run()
        error = run.loop.error_of(self._block)
        if error is not None:
            raise error
        return run.streams[self._block.id]

    # -- streaming ----------------------------------------------------------------------

    def stream(self, name: str) -> Iterator[str]:
        """Pieces of a variable's text as they arrive; raises the error that ends it, if any."""
        from radixlang.state.streaming import follow_cell

        run, cell = self._cell(name, f"read it with async for … in s.astream({name!r})")
        return follow_cell(run, self._block, cell)

    def astream(self, name: str) -> AsyncIterator[str]:
        """Like `stream`, for a caller on an event loop."""
        from radixlang.state.streaming import follow_cell_async

        run, cell = self._cell(name)
        return follow_cell_async(run, self._block, cell)

    def stop(self, name: str) -> None:
        """End the generation of a variable here and keep its text; the program goes on after it.

        Its finish reason is "stopped"; one that has not begun is empty, one that has ended does not
        change. For joined variables and samples, every branch's generation ends. May be called from
        any thread. Under a constraint it acts as if `max_tokens` had been reached.

        Raises:
            ParameterError: the variable is a Python value.
        """
        refs = _refs_of(self._lookup(name))
        if not refs:
            raise ParameterError(f"{name!r} was set by Python; only a generation can be stopped")
        run = self._run()
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
        cells = tuple(self._run().cells.values())
        return sum_usage([cell.completion.usage for cell in cells if cell.completion is not None])

    def _cell(self, name: str, instead: str = "") -> tuple[Run, Cell]:
        """The run and the cell of a variable; `instead`: what an async program should write."""
        found = self._lookup(name)
        if not isinstance(found, Ref):
            raise ParameterError(
                f"{name!r} is not one generation: it was joined or set by Python; read "
                f"s[{name!r}], or ask the branch that generated it"
            )
        run = self._run()
        if instead:
            is_ready = run.loop.cell(found.block, found.slot, found.name).done
            run.readers.check_may_block(is_ready, repr(name), instead)
        return run, self._look(run, found)

    def _finished_cell(self, name: str) -> Cell:
        run, cell = self._cell(name, f"await s.aget({name!r}) first")
        run.readers.wait(lambda: cell.done)
        run.outcome(self._block, cell)
        return cell

    # -- the run ------------------------------------------------------------------------

    @property
    def error(self) -> ProgramError | None:
        """The first error of this branch or of the run, or None."""
        return self._run().loop.error_of(self._block)

    @property
    def seed(self) -> int:
        """The seed of the run; `run(seed=…)` with it gives the same answers."""
        return self._run().seed

    def cancel(self) -> None:
        """End this branch and those below it (the root: the whole program), and free their KV."""
        run = self._run()
        if self._block.parent is None:
            run.cancel()
        else:
            run.flush()
            run.loop.cancel_block(self._block)

    def _run(self) -> Run:
        if isinstance(self._host, Run):
            return self._host
        raise NeedsValueError("a trace has no texts and values yet")


def _refs_of(found: Any) -> list[Ref]:
    """The generations of a variable: one, those of joined branches, or none."""
    if isinstance(found, Ref):
        return [found]
    refs = [ref for ref in getattr(found, "refs", ()) if ref is not None]
    return refs or ([found.ref] if hasattr(found, "ref") else [])


def converted(value: Any, kind: Any) -> Any:
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


def _base_settled(stream: Stream) -> bool:
    base = stream.base
    while base is not None:
        for piece in base.pieces[: stream.base_length]:
            if isinstance(piece, Cell) and not piece.done:
                return False
        stream, base = base, base.base
    return True


def _is_joined(value: Any) -> bool:
    return hasattr(value, "refs")
