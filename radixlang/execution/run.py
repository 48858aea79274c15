"""The executor: one Run walks a graph's blocks on a backend's branches.

A live run records nodes while the program's function runs and hands them over when the function
looks at a value or returns. A compiled run is given its whole graph at the start. Either way the
same handlers run the same nodes, and ten thousand open branches hold no thread.
"""

from __future__ import annotations

import hashlib
import secrets
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from radixlang.errors import CancelledError, DeadlineError, ParameterError, StateClosedError
from radixlang.execution.branch_run import Cell, Stream
from radixlang.execution.chat_format import ChatFormat
from radixlang.execution.node_handlers import follow
from radixlang.execution.run_loop import Driver
from radixlang.execution.timers import deadlines
from radixlang.execution.token_budget import Budget
from radixlang.graph.next_use import FutureUse, Place
from radixlang.graph.nodes import Block, Dynamic, Gen, Graph, Node, Ref
from radixlang.protocol import Backend
from radixlang.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a caller sets for a whole run.

    `seed` None draws one and records it. `defaults` are sampling parameters for every gen that
    does not set them. `timeout` is in seconds; `max_total_tokens` bounds the generated tokens
    of all branches together.
    """

    seed: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    max_total_tokens: int | None = None
    namespace: str = ""

    def __post_init__(self) -> None:
        _require(
            self.seed is None or hasattr(self.seed, "__index__"),
            "seed",
            self.seed,
            "an integer, or None to draw one",
        )
        _require(_is_kind(self.timeout, (int, float)) and (self.timeout or 0) >= 0,
                 "timeout", self.timeout, "a number of seconds, or None")  # fmt: skip
        most = self.max_total_tokens
        _require(_is_kind(most, int) and (most is None or most >= 1),
                 "max_total_tokens", self.max_total_tokens,
                 "an integer of at least 1, or None for no bound")  # fmt: skip
        _require(isinstance(self.namespace, str), "namespace", self.namespace, "a string")


class Run(Driver):
    """One execution of a program: recorded as it goes, or a whole graph given beforehand."""

    def __init__(
        self, name: str, backend: Backend, options: RunOptions, *,
        args: Mapping[str, Any] | None = None, graph: Graph | None = None,
        constraints: Mapping[int, Any] | None = None,
        uses: Mapping[Place, FutureUse] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, backend, options)
        self._uses = uses
        self.args = args or {}
        self.chat = chat_format(backend)
        self.seed = secrets.randbits(63) if options.seed is None else options.seed
        self.constraints: Mapping[int, Any] = {} if constraints is None else constraints
        self.streaming = False
        self.events: list[tuple[Cell, Any]] = []
        self.budget = Budget(options.max_total_tokens)
        self._defaulted: dict[int, tuple[SamplingParams, SamplingParams]] = {}
        self._static = graph is not None
        if graph is not None:
            self.blocks = list(graph.blocks)

    # -- the program's side -------------------------------------------------------------

    def start(self) -> Run:
        """Open the root branch; a static graph starts to run at once."""
        timeout = self.options.timeout
        if timeout is not None:
            error = DeadlineError(f"the program ran past its timeout of {timeout} s")
            self._undo_deadline = deadlines.after(timeout, partial(self.abort, error))
        if self._static:
            self._todo = sum(len(block.nodes) for block in self.blocks)
            self.program_ended = True
        self.post(self._open_root)
        return self

    def record(self, block: Block, node: Node) -> None:
        """Append a node and remember that its block has news."""
        block.nodes.append(node)
        if not block.dirty:
            block.dirty = True
            self._dirty.append(block)

    def flush(self) -> None:
        """Hand everything recorded so far to the executor; returns at once."""
        news: list[tuple[Block, int]] = []
        while self._dirty:
            block = self._dirty.popleft()
            block.dirty = False
            length = len(block.nodes)
            if length > block.flushed:
                self._compile_constraints(block, length)
                news.append((block, length))
        if news:
            self.post(partial(self._advance, news))

    def end_program(self) -> None:
        """The program's function has returned: run what is left, then finish."""
        try:
            self.flush()
        finally:
            self.program_ended = True
            self.post(self._check_finished)

    def read(self, block: Block, ref: Ref) -> Any:
        """The value at ref; runs the program up to it and waits.

        Raises:
            NeedsValueError: it would stop the event loop that the program runs on.
        """
        instead = f"write await s.aget({ref.name!r})" if ref.name else "await s.atext() first"
        asked = repr(ref.name) if ref.name else "a joined text"
        self.check_may_block(self.cell(ref.block, ref.slot, ref.name).done, asked, instead)
        cell = self.look(block, ref)
        self.wait(lambda: cell.done)
        return self.outcome(block, cell)

    async def read_async(self, block: Block, ref: Ref) -> Any:
        """Like `read`, for a caller on an event loop."""
        cell = self.look(block, ref)
        await self.wait_async(lambda: cell.done)
        return self.outcome(block, cell)

    def look(self, block: Block, ref: Ref) -> Cell:
        """The cell at ref, flushed towards; the boundary is recorded in the graph."""
        cell = self.cell(ref.block, ref.slot, ref.name)
        if not cell.seen:
            cell.seen = True
            self.boundary(block, f"value {ref.name!r}")
        return cell

    def boundary(self, block: Block, reason: str) -> None:
        """Record that Python looks at something here, and run what it needs."""
        if not self.program_ended:
            self.record(block, Dynamic(reason, self.location()))
            self.flush()

    def outcome(self, block: Block, cell: Cell) -> Any:
        """The value of a finished cell, or the first error of the run or of this branch."""
        error = self.error_of(block) or cell.error
        if error is not None:
            raise error
        return cell.value

    def cancel(self) -> None:
        """End the run and free what only it holds."""
        self.abort(CancelledError("the program was cancelled by its owner"))

    def stop_cell(self, cell: Cell) -> None:
        """End one generation with the text it has; one that has not begun becomes empty."""
        self.post(partial(_stop, cell))

    def fail_from_program(self, error: BaseException) -> None:
        """The program's own code has raised: end the run, with that as its error."""
        self.program_ended = True
        self.post(lambda: self.fail_run(self._wrap(error, self.streams.get(0), None)))

    def is_complete(self, block: Block) -> bool:
        """Whether everything given to this block has run or failed."""
        stream = self.streams.get(block.id)
        return stream is not None and stream.is_complete

    def follow(self, cell: Cell) -> None:
        """Keep the pieces of a cell from here on, also those that have come already."""
        self.streaming = True
        self.post(partial(self._follow, cell))

    def _follow(self, cell: Cell) -> None:
        if cell.deltas is None and cell.generation is not None:
            follow(self, cell, cell.generation)

    def iter_streams(self) -> Iterator[Stream]:
        """Every stream, in the order of the blocks."""
        for block in self.blocks:
            stream = self.streams.get(block.id)
            if stream is not None:
                yield stream

    # -- what generations need ----------------------------------------------------------

    def params_for(self, stream: Stream, node: Gen) -> SamplingParams:
        """The node's parameters over the run's defaults, with the seed of this place."""
        params = node.params
        if self.options.defaults:
            known = self._defaulted.get(id(params))
            if known is None or known[0] is not params:
                merged = SamplingParams(**{**self.options.defaults, **dict(node.overrides)})
                known = self._defaulted[id(params)] = (params, merged)
            params = known[1]
        root = self.seed if params.seed is None else params.seed
        return params.with_seed(node_seed(root, stream.block.address, node.slot))

    def hint(self, stream: Stream) -> None:
        """Tell the backend when the prompt up to this node is read again: a static graph knows."""
        if self._uses is not None and stream.branch is not None:
            stream.branch.expect(self._uses[(stream.block.id, stream.pos)].next_in)

    def constraint_for(self, node: Gen) -> Any:
        """The node's compiled constraint, or None."""
        return None if node.constraint is None else self.constraints[id(node.constraint)]

    def _compile_constraints(self, block: Block, length: int) -> None:
        for node in block.nodes[block.flushed : length]:
            if isinstance(node, Gen) and node.constraint is not None:
                try:
                    self._compile(node)
                except Exception as error:
                    stream = self.streams.get(block.id)
                    self.post(partial(self.fail_run, self._wrap(error, stream, node)))
                    return

    def _compile(self, node: Gen) -> None:
        assert isinstance(self.constraints, dict)
        if id(node.constraint) not in self.constraints:
            self.constraints[id(node.constraint)] = self.backend.compile_constraint(node.constraint)


def _is_kind(value: object, kind: type | tuple[type, ...]) -> bool:
    return value is None or (isinstance(value, kind) and not isinstance(value, bool))


def _require(ok: bool, name: str, value: object, expected: str) -> None:
    if not ok:
        raise ParameterError(f"{name} must be {expected}, got {value!r}")


def _stop(cell: Cell) -> None:
    cell.is_stopping = True
    if cell.generation is not None:
        cell.generation.stop()


def closed_error(name: str, why: str) -> StateClosedError:
    """The error of appending to a state that is over."""
    return StateClosedError(
        f"state of program {name!r} {why}; nothing can be appended to it: append before "
        "that, or to a state that goes on"
    )


def node_seed(seed: int, address: str, slot: int, sample: int = 0) -> int:
    """The 64-bit key of one generation's random numbers: (seed, node path, sample)."""
    key = f"{seed}|{address}|{slot}|{sample}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


_formats: weakref.WeakKeyDictionary[Backend, ChatFormat] = weakref.WeakKeyDictionary()


def chat_format(backend: Backend) -> ChatFormat:
    """The backend's ChatFormat, shared by all runs on it."""
    try:
        found = _formats.get(backend)
        if found is None:
            found = _formats[backend] = ChatFormat(backend)
        return found
    except TypeError:  # a backend that allows no weak references
        return ChatFormat(backend)
