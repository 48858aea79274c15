"""The executor: one Run walks a graph's blocks on a backend's branches.

A Run is an actor without a thread. Commands are posted to its inbox, and whoever finds the
actor idle drains it: the program's thread when it flushes nodes, the backend's when a result
comes. Nothing in a drain waits. Streams whose next node lacks a value sleep until a callback
wakes them, so ten thousand open branches hold no thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from radixlang.chat import ChatFormat
from radixlang.errors import (
    BudgetError,
    CancelledError,
    DeadlineError,
    ProgramError,
    RadixlangError,
    StateClosedError,
)
from radixlang.graph import (
    Block,
    Call,
    Dynamic,
    Fork,
    Gen,
    Graph,
    Join,
    Location,
    Node,
    Ref,
    Select,
)
from radixlang.handlers import HANDLERS, follow
from radixlang.params import SamplingParams
from radixlang.protocol import Backend
from radixlang.recorder import Recorder
from radixlang.streams import Cell, Stream
from radixlang.waits import deadlines

_SLOT_BITS = 24


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


class Run(Recorder):
    """One execution of a program: recorded as it goes, or a whole graph given beforehand."""

    def __init__(
        self, name: str, backend: Backend, options: RunOptions, *,
        args: Mapping[str, Any] | None = None, graph: Graph | None = None,
        constraints: Mapping[int, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self.backend = backend
        self.options = options
        self.on_finish: Callable[[], None] | None = None
        self.args = args or {}
        self.chat = chat_format(backend)
        self.seed = secrets.randbits(63) if options.seed is None else options.seed
        self.streams: dict[int, Stream] = {}
        self.cells: dict[int, Cell] = {}
        self.constraints: Mapping[int, Any] = {} if constraints is None else constraints
        self.error: ProgramError | None = None
        self.finished = False
        self.program_ended = False
        self.streaming = False
        self.events: list[tuple[Cell, Any]] = []
        self.spent_tokens = 0
        self.reserved_tokens = 0
        self.budget_waiters: list[Stream] = []
        self._defaulted: dict[int, tuple[SamplingParams, SamplingParams]] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._actor = threading.Lock()
        self._ready: deque[Stream] = deque()
        self._dirty: deque[Block] = deque()
        self._condition = threading.Condition(threading.Lock())
        self._num_waiting = 0
        self._async_waiters: list[tuple[Callable[[], bool], Any, Any]] = []
        self._todo = 0
        self._static = graph is not None
        if graph is not None:
            self.blocks = list(graph.blocks)
        self._undo_deadline: Callable[[], None] | None = None

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

    def read(self, block: Block, ref: Ref, location: Location | None = None) -> Any:
        """The value at ref; runs the program up to it and waits."""
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

    def error_of(self, block: Block) -> ProgramError | None:
        """The first error that concerns this branch."""
        if self.error is not None:
            return self.error
        stream = self.streams.get(block.id)
        return stream.error if stream is not None else None

    def cell(self, block: int, slot: int, name: str | None = None) -> Cell:
        """The cell of a value node, made at first sight."""
        key = (block << _SLOT_BITS) | slot
        found = self.cells.get(key)
        if found is None:
            with self._condition:
                found = self.cells.setdefault(key, Cell(block, name))
            error = self.error_of(self.blocks[block])
            if error is not None:
                found.fail(error)
        return found

    def wait(self, predicate: Callable[[], bool]) -> None:
        """Block until predicate() holds or the run has failed. It must stay true once it is."""
        if predicate() or self.error is not None:
            return
        with self._condition:
            self._num_waiting += 1
            try:
                self._condition.wait_for(lambda: predicate() or self.error is not None)
            finally:
                self._num_waiting -= 1

    async def wait_async(self, predicate: Callable[[], bool]) -> None:
        """Like `wait`, without blocking the event loop."""
        future = asyncio.get_running_loop().create_future()
        entry = (predicate, asyncio.get_running_loop(), future)
        with self._condition:
            self._num_waiting += 1
            self._async_waiters.append(entry)
        try:
            if not predicate() and self.error is None:
                await future
        finally:
            with self._condition:
                self._num_waiting -= 1
                if entry in self._async_waiters:
                    self._async_waiters.remove(entry)

    def abort(self, error: RadixlangError) -> None:
        """End the whole run with this error."""
        self.post(partial(self._abort, error))

    def cancel(self) -> None:
        """End the run and free what only it holds."""
        self.abort(CancelledError("the program was cancelled by its owner"))

    def fail_from_program(self, error: BaseException) -> None:
        """The program's own code has raised: end the run, with that as its error."""
        self.program_ended = True
        self.post(lambda: self.fail_run(self._wrap(error, self.streams.get(0), None)))

    def cancel_block(self, block: Block) -> None:
        """End one branch and what is below it; the rest of the program goes on."""
        self.post(partial(self._cancel_block, block))

    def _cancel_block(self, block: Block) -> None:
        stream = self.streams.get(block.id)
        if stream is not None and stream.error is None:
            self.fail_branch(stream, CancelledError("the branch was cancelled by its owner"))

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

    # -- the actor ----------------------------------------------------------------------

    def post(self, command: Callable[[], None]) -> None:
        """Run a command in the actor: here if it is idle, else by whoever is in it."""
        self._inbox.append(command)
        while self._inbox and self._actor.acquire(blocking=False):
            try:
                while self._inbox:
                    self._guarded(self._inbox.popleft())
                    self._drive()
            finally:
                self._actor.release()

    def _guarded(self, command: Callable[[], None]) -> None:
        try:
            command()
        except Exception as error:
            self.fail_run(self._wrap(error, None, None))

    def _drive(self) -> None:
        while self._ready:
            stream = self._ready.popleft()
            stream.queued = False
            nodes = stream.block.nodes
            while not stream.waiting and stream.error is None and stream.pos < stream.block.flushed:
                node = nodes[stream.pos]
                try:
                    if not HANDLERS[type(node)](self, stream, node):
                        stream.waiting = True
                        break
                except Exception as error:
                    self.fail(stream, node, error)
                    break
                stream.pos += 1
                self._todo -= 1
            if stream.watchers or stream.ended:
                self.settle(stream)
        self._check_finished()

    def _open_root(self) -> None:
        branch = self.backend.new_branch(namespace=self.options.namespace)
        self.add_stream(Stream(self.blocks[0], branch))

    def add_stream(self, stream: Stream) -> None:
        """Register a stream and let it run."""
        self.streams[stream.block.id] = stream
        if self.finished and stream.branch is not None:
            stream.branch.release()
            stream.branch = None
        self.ready(stream)

    def ready(self, stream: Stream) -> None:
        """Queue a stream to be driven."""
        stream.waiting = False
        if not stream.queued:
            stream.queued = True
            self._ready.append(stream)

    def wake_by(self, stream: Stream) -> Callable[[], None]:
        """A callback, for inside the actor, that lets the stream try its node again."""
        return partial(self.ready, stream)

    def step(self, stream: Stream) -> None:
        """The node that the stream waited at is done; go on behind it."""
        stream.pos += 1
        self._todo -= 1
        self.ready(stream)

    def begin(self, stream: Stream) -> None:
        """An operation of the stream is in flight; every begin has its `ended`."""
        stream.outstanding += 1
        self._todo += 1

    def ended(self, stream: Stream) -> None:
        """An operation of the stream has come back."""
        stream.outstanding -= 1
        self._todo -= 1
        if stream.watchers or stream.ended:
            self.settle(stream)

    def settle(self, stream: Stream) -> None:
        """Wake those who wait for a stream to complete, if it has; free it if it is over."""
        if not stream.is_complete:
            return
        watchers, stream.watchers = stream.watchers, None
        for watcher in watchers or ():
            self.ready(watcher)
        if stream.ended:
            release(stream)

    def close(self, block: Block) -> None:
        """Nothing more will be appended to this block: free its branch once it is done."""
        self.post(partial(self._close, block))

    def _close(self, block: Block) -> None:
        stream = self.streams.get(block.id)
        if stream is not None:
            stream.ended = True
            self.settle(stream)

    def notify(self) -> None:
        """Something a reader may wait for has changed."""
        if self._num_waiting:
            with self._condition:
                self._condition.notify_all()
                for predicate, loop, future in tuple(self._async_waiters):
                    if predicate() or self.error is not None:
                        _wake_loop(loop, future)

    def _advance(self, news: list[tuple[Block, int]]) -> None:
        for block, length in news:
            if length > block.flushed:
                self._todo += length - block.flushed
                block.flushed = length
        for block, _ in news:
            stream = self.streams.get(block.id)
            if stream is None:
                continue
            if stream.error is not None:
                self._skip(stream)
            elif not stream.waiting:
                self.ready(stream)

    def _check_finished(self) -> None:
        if self._num_waiting:
            self.notify()
        is_over = self.program_ended and not self._todo and not self._dirty and not self._ready
        if is_over and self.streams and not self.finished:
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        if self._undo_deadline is not None:
            self._undo_deadline()
        for stream in self.streams.values():
            branch, stream.branch = stream.branch, None
            if branch is not None:
                branch.cancel() if self.error is not None else branch.release()
        self.notify()
        if self.on_finish is not None:
            self.on_finish()

    # -- errors -------------------------------------------------------------------------

    def fail(self, stream: Stream, node: Node | None, error: BaseException) -> None:
        """An error on a stream fails its collecting fork branch, or else the run."""
        if stream.error is not None or self.error is not None:
            return
        wrapped = self._wrap(error, stream, node)
        if stream.domain is None:
            self.fail_run(wrapped)
        else:
            self._fail_domain(stream.domain, wrapped)

    def fail_run(self, error: ProgramError) -> None:
        """Keep the first error of the run and end everything."""
        if self.error is not None or self.finished:
            return
        with self._condition:
            self.error = error
            cells = list(self.cells.values())
        for cell in cells:
            cell.fail(error)
        for stream in self.streams.values():
            stream.error = stream.error or error
        self._ready.clear()
        self._finish()

    def _abort(self, error: RadixlangError) -> None:
        if not self.finished:
            self.fail_run(self._wrap(error, self.streams.get(0), None))

    def fail_branch(self, stream: Stream, error: BaseException) -> None:
        """End one branch, and what is below it, with an error (cancellation of a part)."""
        self._fail_domain(stream, self._wrap(error, stream, None))

    def _fail_domain(self, domain: Stream, error: ProgramError) -> None:
        members = [stream for stream in self.streams.values() if _is_within(stream, domain)]
        blocks = {stream.block.id for stream in members}
        for stream in members:
            stream.error = stream.error or error
            branch, stream.branch = stream.branch, None
            if branch is not None:
                branch.cancel()
        for cell in list(self.cells.values()):
            if cell.block in blocks:
                cell.fail(error)
        for stream in members:
            self._skip(stream)
        self.notify()

    def _skip(self, stream: Stream) -> None:
        """Count the nodes of a failed stream as done, and fail what would start in them."""
        assert stream.error is not None
        work = [stream]
        while work:
            current = work.pop()
            for node in current.block.nodes[current.pos : current.block.flushed]:
                self._todo -= 1
                if isinstance(node, (Gen, Select, Join)):
                    self.cell(current.block.id, node.slot).fail(stream.error)
                children = node.children if isinstance(node, Fork) else ()
                for child in (node.child,) if isinstance(node, Call) else children:
                    below = Stream(self.blocks[child], None, current)
                    below.error = stream.error
                    self.streams[child] = below
                    work.append(below)
            current.pos = current.block.flushed
            self.settle(current)

    def _wrap(self, error: BaseException, stream: Stream | None, node: Node | None) -> ProgramError:
        if isinstance(error, ProgramError):
            return error
        location = str(node.location) if node is not None and node.location else ""
        branch = stream.block.path if stream is not None else ()
        tail = stream.tail() if stream is not None else ""
        lines = [f"{type(error).__name__}: {error}"]
        place = f"at {location}" if location else f"in program {self.name!r}"
        lines.append(f"  {place}, branch {list(branch)} on {self.backend.model_name}")
        if tail:
            lines.append(f"  the prompt ends: {tail!r}")
        wrapped = ProgramError("\n".join(lines), location=location, branch=branch, prompt_tail=tail)
        wrapped.__cause__ = error
        return wrapped

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

    def reserve(self, stream: Stream, wanted: int) -> int | None:
        """Tokens of the budget that a generation may use; None: wait until some come back.

        Raises:
            BudgetError: the budget is spent.
        """
        budget = self.options.max_total_tokens
        if budget is None:
            return wanted
        left = budget - self.spent_tokens - self.reserved_tokens
        if left > 0:
            granted = min(wanted, left)
            self.reserved_tokens += granted
            return granted
        if self.reserved_tokens:
            self.budget_waiters.append(stream)
            return None
        raise BudgetError(
            f"the program has generated {self.spent_tokens} tokens of max_total_tokens={budget}; "
            "raise it, or ask for fewer tokens"
        )

    def settle_budget(self, granted: int, used: int) -> None:
        """Give back what a generation did not use, and let waiting streams try again."""
        self.spent_tokens += used
        if self.options.max_total_tokens is not None:
            self.reserved_tokens -= granted
            waiters, self.budget_waiters = self.budget_waiters, []
            for stream in waiters:
                self.ready(stream)

    def iter_streams(self) -> Iterator[Stream]:
        """Every stream, in the order of the blocks."""
        for block in self.blocks:
            stream = self.streams.get(block.id)
            if stream is not None:
                yield stream


def release(stream: Stream) -> None:
    """Give the stream's branch back to the backend, once."""
    branch, stream.branch = stream.branch, None
    if branch is not None:
        branch.release()


def closed_error(name: str, why: str) -> StateClosedError:
    """The error of appending to a state that is over."""
    return StateClosedError(f"state of program {name!r} {why}; nothing can be appended to it")


def node_seed(seed: int, address: str, slot: int, sample: int = 0) -> int:
    """The 64-bit key of one generation's random numbers: (seed, node path, sample)."""
    key = f"{seed}|{address}|{slot}|{sample}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def _is_within(stream: Stream, domain: Stream) -> bool:
    block: Block | None = stream.block
    while block is not None:
        if block is domain.block:
            return True
        block = block.parent
    return False


def _wake_loop(loop: Any, future: Any) -> None:
    def wake() -> None:
        if not future.done():
            future.set_result(None)

    with suppress(RuntimeError):  # the loop has been closed: nobody waits there any more
        loop.call_soon_threadsafe(wake)


_formats: Any = None


def chat_format(backend: Backend) -> ChatFormat:
    """The backend's ChatFormat, shared by all runs on it."""
    global _formats
    if _formats is None:
        import weakref

        _formats = weakref.WeakKeyDictionary()
    try:
        found: ChatFormat | None = _formats.get(backend)
        if found is None:
            found = _formats[backend] = ChatFormat(backend)
        return found
    except TypeError:  # a backend that allows no weak references
        return ChatFormat(backend)
