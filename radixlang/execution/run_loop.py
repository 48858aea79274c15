"""Driving streams: nodes are handled in order, waits are callbacks, errors stay in their place.

An error on a stream fails the nearest fork branch that collects its errors, or else the whole
run. Everything here runs inside the run's actor.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from radixlang.errors import CancelledError, ProgramError, RadixlangError, place_of
from radixlang.execution.branch_run import Cell, Stream
from radixlang.execution.mailbox import Actor
from radixlang.execution.node_handlers import HANDLERS
from radixlang.execution.prompt_parts import write_held
from radixlang.graph.nodes import (
    Block,
    Call,
    Dynamic,
    Fork,
    Gen,
    Join,
    Node,
    RoleEnd,
    Select,
    Text,
)
from radixlang.protocol import Backend

if TYPE_CHECKING:
    from radixlang.execution.run import RunOptions

_SLOT_BITS = 24
_KEEPS_HELD = (Text, RoleEnd, Join, Dynamic)  # nodes that need nothing of the branch but text
_MAIN = threading.main_thread()


class Driver(Actor):
    """The streams and cells of a run, and what makes them move.

    `started_at` is the time of day in seconds; `started_s` and `ended_s` are of the monotonic
    clock, `ended_s` 0.0 while the run goes on.
    """

    def __init__(self, name: str, backend: Backend, options: RunOptions) -> None:
        super().__init__(name)
        self.backend = backend
        self.options = options
        self.on_finish: Callable[[], None] | None = None
        self.streams: dict[int, Stream] = {}
        self.cells: dict[int, Cell] = {}
        self.started_at, self.started_s, self.ended_s = time.time(), time.monotonic(), 0.0
        self.finished = False
        self.program_ended = False
        self._ready: deque[Stream] = deque()
        self._dirty: deque[Block] = deque()
        self._todo = 0  # nodes and operations that have not ended
        self._undo_deadline: Callable[[], None] | None = None

    # -- streams and cells --------------------------------------------------------------

    def cell(self, block: int, slot: int, name: str | None = None) -> Cell:
        """The cell of a value node, made at first sight."""
        key = (block << _SLOT_BITS) | slot
        found = self.cells.get(key)
        if found is None:
            with self._lock:
                found = self.cells.setdefault(key, Cell(block, name))
            error = self.error_of(self.blocks[block])
            if error is not None:
                found.fail(error)
        return found

    def error_of(self, block: Block) -> ProgramError | None:
        """The first error that concerns this branch."""
        if self.error is not None:
            return self.error
        stream = self.streams.get(block.id)
        return stream.error if stream is not None else None

    def _guarded(self, command: Callable[[], None]) -> None:
        try:
            command()
        except BaseException as error:
            self.fail_run(self._wrap(error, None, None))
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is _MAIN:
                raise  # the caller's own

    def _drive(self) -> None:
        while self._ready:
            stream = self._ready.popleft()
            stream.queued = False
            nodes = stream.block.nodes
            while not stream.waiting and stream.error is None and stream.pos < stream.block.flushed:
                node = nodes[stream.pos]
                if stream.held is not None and not isinstance(node, _KEEPS_HELD):
                    write_held(stream)
                try:
                    if not HANDLERS[type(node)](self, stream, node):
                        stream.waiting = True
                        break
                except Exception as error:
                    self.fail(stream, node, error)
                    break
                stream.pass_node()
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
        stream.pass_node()
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
        if self.has_waiters:
            self.notify()
        is_over = self.program_ended and not self._todo and not self._dirty and not self._ready
        if is_over and self.streams and not self.finished:
            self._finish()

    def _finish(self) -> None:
        self.ended_s = time.monotonic()
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
        wrapped = stream.failure = self._wrap(error, stream, node)
        if stream.domain is None:
            self.fail_run(wrapped)
        else:
            self._fail_domain(stream.domain, wrapped)

    def fail_run(self, error: ProgramError) -> None:
        """Keep the first error of the run and end everything."""
        if self.error is not None or self.finished:
            return
        with self._lock:
            self.error = error
            cells = list(self.cells.values())
        for cell in cells:
            cell.fail(error)
        for stream in self.streams.values():
            stream.stop(error)
        self._ready.clear()
        self._finish()

    def abort(self, error: RadixlangError) -> None:
        """End the whole run with this error."""
        self.post(partial(self._abort, error))

    def _abort(self, error: RadixlangError) -> None:
        if not self.finished:
            self.fail_run(self._wrap(error, self.streams.get(0), None))

    def cancel_block(self, block: Block) -> None:
        """End one branch and what is below it; the rest of the program goes on."""
        self.post(partial(self._cancel_block, block))

    def _cancel_block(self, block: Block) -> None:
        stream = self.streams.get(block.id)
        if stream is not None and stream.error is None:
            self.fail_branch(stream, CancelledError("the branch was cancelled by its owner"))

    def fail_branch(self, stream: Stream, error: BaseException) -> None:
        """End one branch, and what is below it, with an error (cancellation of a part)."""
        self._fail_domain(stream, self._wrap(error, stream, None))

    def _fail_domain(self, domain: Stream, error: ProgramError) -> None:
        members = [stream for stream in self.streams.values() if _is_within(stream, domain)]
        blocks = {stream.block.id for stream in members}
        for stream in members:
            stream.stop(error)
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
        at = None if node is None else node.location
        location = place_of(error) if at is None else str(at)
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


def release(stream: Stream) -> None:
    """Give the stream's branch back to the backend, once."""
    branch, stream.branch = stream.branch, None
    if branch is not None:
        branch.release()


def _is_within(stream: Stream, domain: Stream) -> bool:
    block: Block | None = stream.block
    while block is not None:
        if block is domain.block:
            return True
        block = block.parent
    return False
