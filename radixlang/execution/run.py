"""The executor: one Run walks a graph's blocks on a backend's branches.

A live run records nodes while the program's function runs and hands them over when the function
looks at a value or returns. A compiled run is given its whole graph at the start. Either way the
same handlers run the same nodes, and ten thousand open branches hold no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NoReturn

from radixlang.errors import CancelledError, DeadlineError, ProgramError, refuse_pickling
from radixlang.execution.branch_run import Stream
from radixlang.execution.failures import placed_error
from radixlang.execution.handlers.node_context import NodeContext
from radixlang.execution.handlers.node_handlers import follow, handle_node
from radixlang.execution.pieces import Cell
from radixlang.execution.recorder import Recorder
from radixlang.execution.run_loop import RunLoop
from radixlang.execution.run_options import RunOptions
from radixlang.execution.threads.timers import deadlines
from radixlang.graph.next_use import FutureUse, NodePosition
from radixlang.graph.nodes import Block, Dynamic, Gen, Graph, Node, Ref
from radixlang.protocol import Backend


class Run:
    """One execution of a program: recorded as it goes, or a whole graph given beforehand.

    It has a recorder to which the program writes, a loop that drives streams, readers that wait,
    and the context of node handlers.
    """

    def __init__(
        self, name: str, backend: Backend, options: RunOptions, *,
        args: Mapping[str, object] | None = None, graph: Graph | None = None,
        constraints: Mapping[int, object] | None = None,
        uses: Mapping[NodePosition, FutureUse] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.backend, self.options = name, backend, options
        self.recorder = Recorder(name, None if graph is None else graph.blocks)
        self.loop = RunLoop(self.recorder, self._handle, self._placed)
        self.readers = self.loop.readers
        self.nodes = NodeContext(
            name, backend, options, self.loop, args=args or {}, constraints=constraints, uses=uses
        )
        self._is_static = graph is not None

    def __reduce__(self) -> NoReturn:
        refuse_pickling(f"the run of program {self.name!r}", "pickle its values and its text")

    def _handle(self, stream: Stream, node: Node) -> bool:
        return handle_node(self.nodes, stream, node)

    def _placed(
        self, error: BaseException, stream: Stream | None, node: Node | None
    ) -> ProgramError:
        return placed_error(self.name, self.backend.model_name, error, stream, node)

    # -- what it is ---------------------------------------------------------------------

    @property
    def args(self) -> Mapping[str, object]:
        """The program's arguments."""
        return self.nodes.args

    @property
    def seed(self) -> int:
        """The seed from which the seeds of all generations are made."""
        return self.nodes.seed

    @property
    def blocks(self) -> list[Block]:
        """The program's blocks, one a branch."""
        return self.recorder.blocks

    @property
    def streams(self) -> Mapping[int, Stream]:
        """Streams by the id of their block."""
        return self.loop.streams

    @property
    def cells(self) -> Mapping[int, Cell]:
        """Values by their place."""
        return self.loop.cells

    @property
    def error(self) -> ProgramError | None:
        """The first error of the run."""
        return self.loop.error

    @property
    def finished(self) -> bool:
        """Whether everything has ended."""
        return self.loop.finished

    @property
    def program_ended(self) -> bool:
        """Whether the program's function has returned or raised."""
        return self.loop.program_ended

    # -- the program's side -------------------------------------------------------------

    def start(self) -> Run:
        """Open the root branch; a static graph starts to run at once."""
        timeout = self.options.timeout
        if timeout is not None:
            error = DeadlineError(f"the program ran past its timeout of {timeout} s")
            self.loop.at_end.insert(0, deadlines.after(timeout, partial(self.loop.abort, error)))
        if self._is_static:
            self.loop.expect(self.blocks)
        self.loop.post(self._open_root)
        return self

    def _open_root(self) -> None:
        branch = self.backend.new_branch(namespace=self.options.namespace)
        stream = Stream(self.blocks[0], branch)
        stream.adapter = self.options.adapter
        branch.use_adapter(stream.adapter)
        self.loop.add_stream(stream)

    def on_finish(self, tell: Callable[[], None]) -> None:
        """Call this once, from any thread, when the run has ended."""
        self.loop.at_end.append(tell)

    def record(self, block: Block, node: Node) -> None:
        """Append a node; it runs at the next `flush`."""
        self.recorder.record(block, node)

    def flush(self) -> None:
        """Hand everything recorded so far to the executor; returns at once."""
        news: list[tuple[Block, int]] = []
        for block, length in self.recorder.take_news():
            self._compile_constraints(block, length)
            news.append((block, length))
        if news:
            self.loop.post(partial(self.loop.advance, news))

    def _compile_constraints(self, block: Block, length: int) -> None:
        for node in block.nodes[block.flushed : length]:
            if isinstance(node, Gen):
                try:
                    self.nodes.compile_constraint(node)
                except Exception as error:
                    placed = self._placed(error, self.streams.get(block.id), node)
                    self.loop.post(partial(self.loop.fail_run, placed))
                    return

    def end_program(self) -> None:
        """The program's function has returned: run what is left, then finish."""
        try:
            self.flush()
        finally:
            self.loop.post(self.loop.end_program)

    def check_may_read(self, ref: Ref) -> None:
        """Refuse to wait for a value on the event loop that the program runs on.

        Raises:
            NeedsValueError: the value is not there yet, and this is the loop's own thread.
        """
        instead = f"write await s.aget({ref.name!r})" if ref.name else "await s.atext() first"
        asked = repr(ref.name) if ref.name else "a joined text"
        is_ready = self.loop.cell(ref.block, ref.slot, ref.name).done
        self.readers.check_may_block(is_ready, asked, instead)

    def look(self, block: Block, ref: Ref) -> Cell:
        """The cell at ref; records the boundary in the graph and flushes the nodes up to it."""
        cell = self.loop.cell(ref.block, ref.slot, ref.name)
        if not cell.seen:
            cell.seen = True
            self.boundary(block, f"value {ref.name!r}")
        return cell

    def boundary(self, block: Block, reason: str) -> None:
        """Record in the graph that Python looks at a value here, and flush."""
        if not self.program_ended:
            self.record(block, Dynamic(reason, self.recorder.location()))
            self.flush()

    def outcome(self, block: Block, cell: Cell) -> object:
        """The value of a finished cell, or the first error of the run or of this branch."""
        error = self.loop.error_of(block) or cell.error
        if error is not None:
            raise error
        return cell.value

    def cancel(self) -> None:
        """End the run and free the memory that only it holds."""
        self.loop.abort(CancelledError("the program was cancelled by its owner"))

    def cancel_branch(self, block: Block) -> None:
        """End one branch and what is below it; the root's end is the run's."""
        if block.parent is None:
            self.cancel()
        else:
            self.flush()
            self.loop.cancel_block(block)

    def stop_cell(self, cell: Cell) -> None:
        """End one generation with the text it has; one that has not begun becomes empty."""
        self.loop.post(partial(_stop, cell))

    def fail_from_program(self, error: BaseException) -> None:
        """End the run with an exception of the program's own code as its error."""
        self.loop.post(partial(self._fail_from_program, error))

    def _fail_from_program(self, error: BaseException) -> None:
        self.loop.fail_run(self._placed(error, self.streams.get(0), None))
        self.loop.end_program()  # after the error: a reader that sees the end asks for it

    def is_complete(self, block: Block) -> bool:
        """Whether everything given to this block has run or failed."""
        stream = self.streams.get(block.id)
        return stream is not None and stream.is_complete

    def follow(self, cell: Cell) -> None:
        """Record the pieces of a cell from here on, and those that have already arrived."""
        self.nodes.is_followed = True
        self.loop.post(partial(self._follow, cell))

    def _follow(self, cell: Cell) -> None:
        if cell.deltas is None and cell.generation is not None:
            follow(self.nodes, cell, cell.generation)

    def iter_streams(self) -> Iterator[Stream]:
        """Every stream, in the order of the blocks."""
        for block in self.blocks:
            stream = self.streams.get(block.id)
            if stream is not None:
                yield stream


def _stop(cell: Cell) -> None:
    cell.is_stopping = True
    if cell.generation is not None:
        cell.generation.stop()
