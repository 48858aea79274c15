"""The loop that drives streams: it handles nodes in order, and waits by callbacks.

An error on a stream fails the nearest fork branch that collects its errors, or else the whole
run. Everything here runs inside the run's mailbox.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from radixlang.errors import CancelledError, ProgramError, RadixlangError
from radixlang.execution.branch_run import Stream
from radixlang.execution.pieces import Cell
from radixlang.execution.recorder import Recorder
from radixlang.execution.threads.mailbox import Mailbox
from radixlang.execution.threads.readers import Readers
from radixlang.graph.nodes import (
    Block,
    Call,
    Fork,
    Gen,
    Join,
    Node,
    Select,
)
from radixlang.process_owner import ProcessOwner

Handle: TypeAlias = Callable[[Stream, Node], bool]
Placed: TypeAlias = Callable[[BaseException, "Stream | None", "Node | None"], ProgramError]

_SLOT_BITS = 24
_MAIN = threading.main_thread()


class RunLoop:
    """The streams and cells of a run, and the loop that drives them.

    `started_at` is in seconds since the epoch; `started_s` and `ended_s` are of the monotonic
    clock, `ended_s` 0.0 while the run goes on.

    Args:
        recorder: the program's blocks.
        handle: executes a node; returns False if its stream must wait.
        placed: turns an error into the ProgramError that names its place.
    """

    def __init__(self, recorder: Recorder, handle: Handle, placed: Placed) -> None:
        self.blocks = recorder.blocks
        self.readers = Readers(
            ProcessOwner(f"the run of program {recorder.name!r}"), lambda: self.error is not None
        )
        self.post = Mailbox(self._take).post
        self.at_end: list[Callable[[], None]] = []
        self.error: ProgramError | None = None
        self.streams: dict[int, Stream] = {}
        self.cells: dict[int, Cell] = {}
        self.started_at, self.started_s, self.ended_s = time.time(), time.monotonic(), 0.0
        self.finished = False
        self.program_ended = False
        self._recorder, self._handle, self._placed = recorder, handle, placed
        self._lock = threading.Lock()
        self._ready: deque[Stream] = deque()
        self._todo = 0  # nodes and operations that have not ended

    # -- streams and cells --------------------------------------------------------------

    def cell(self, block: int, slot: int, name: str | None = None) -> Cell:
        """The cell of a value node, made at the first call."""
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

    def _take(self, command: Callable[[], None]) -> None:
        """Run a command, and the work that it enables; its error becomes the run's."""
        try:
            command()
        except BaseException as error:
            self.fail_run(self._placed(error, None, None))
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is _MAIN:
                raise  # the caller's own
        self._drive()

    def _drive(self) -> None:
        while self._ready:
            stream = self._ready.popleft()
            stream.queued = False
            nodes = stream.block.nodes
            while not stream.waiting and stream.error is None and stream.pos < stream.block.flushed:
                node = nodes[stream.pos]
                try:
                    if not self._handle(stream, node):
                        stream.waiting = True
                        break
                except Exception as error:
                    self.fail(stream, node, error)
                    break
                stream.pass_node()
                self._todo -= 1
            if stream.watchers or stream.ended:
                self.settle(stream)
        self.check_finished()

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
        """A callback, for inside the mailbox, that lets the stream try its node again."""
        return partial(self.ready, stream)

    def step(self, stream: Stream) -> None:
        """Continue a stream after the node at which it waited is done."""
        stream.pass_node()
        self._todo -= 1
        self.ready(stream)

    def begin(self, stream: Stream) -> None:
        """Note that an operation of the stream is in flight; `ended` follows each `begin`."""
        stream.outstanding += 1
        self._todo += 1

    def ended(self, stream: Stream) -> None:
        """Note that an operation of the stream has ended."""
        stream.outstanding -= 1
        self._todo -= 1
        if stream.watchers or stream.ended:
            self.settle(stream)

    def settle(self, stream: Stream) -> None:
        """If a stream is complete, wake those that wait for it; if it is closed, free it."""
        if not stream.is_complete:
            return
        watchers, stream.watchers = stream.watchers, None
        for watcher in watchers or ():
            self.ready(watcher)
        if stream.ended:
            release(stream)

    def close(self, block: Block) -> None:
        """Close a block, to which nothing more is appended; its branch is freed once it is done."""
        self.post(partial(self._close, block))

    def _close(self, block: Block) -> None:
        stream = self.streams.get(block.id)
        if stream is not None:
            stream.ended = True
            self.settle(stream)

    def expect(self, blocks: Sequence[Block]) -> None:
        """Count the nodes of a whole given graph, to which no program adds any."""
        self._todo = sum(len(block.nodes) for block in blocks)
        self.program_ended = True

    def end_program(self) -> None:
        """Note, inside the mailbox, that no nodes come after those handed over before this.

        It is a command like `advance`, as a flag that the program's thread sets would be seen
        before commands that the thread has posted and that have not run yet.
        """
        self.program_ended = True

    def advance(self, news: list[tuple[Block, int]]) -> None:
        """Continue with blocks that have grown to these lengths."""
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

    def check_finished(self) -> None:
        """Notify readers, and finish if the program has ended and nothing is left to do."""
        if self.readers.are_waiting:
            self.readers.notify()
        is_over = self.program_ended and not (self._todo or self._recorder.has_news or self._ready)
        if is_over and self.streams and not self.finished:
            self._finish()

    def _finish(self) -> None:
        self.ended_s = time.monotonic()
        try:
            for stream in self.streams.values():
                branch, stream.branch = stream.branch, None
                if branch is not None:
                    branch.cancel() if self.error is not None else branch.release()
        finally:  # last, so that who sees the end can count on free branches
            self.finished = True
            self.readers.notify()
        for tell in self.at_end:
            tell()

    # -- errors -------------------------------------------------------------------------

    def fail(self, stream: Stream, node: Node | None, error: BaseException) -> None:
        """Fail the nearest fork branch that collects errors with this one, or else the run."""
        if stream.error is not None or self.error is not None:
            return
        wrapped = stream.failure = self._placed(error, stream, node)
        if stream.domain is None:
            self.fail_run(wrapped)
        else:
            self._fail_domain(stream.domain, wrapped)

    def fail_run(self, error: ProgramError) -> None:
        """End everything; the run keeps its first error."""
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
            self.fail_run(self._placed(error, self.streams.get(0), None))

    def cancel_block(self, block: Block) -> None:
        """End one branch and what is below it; the rest of the program goes on."""
        self.post(partial(self._cancel_block, block))

    def _cancel_block(self, block: Block) -> None:
        stream = self.streams.get(block.id)
        if stream is not None and stream.error is None:
            self.fail_branch(stream, CancelledError("the branch was cancelled by its owner"))

    def fail_branch(self, stream: Stream, error: BaseException) -> None:
        """End one branch, and the branches below it, with an error (a partial cancellation)."""
        self._fail_domain(stream, self._placed(error, stream, None))

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
        self.readers.notify()

    def _skip(self, stream: Stream) -> None:
        """Count the nodes of a failed stream as done, and fail their cells and children."""
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


def release(stream: Stream) -> None:
    """Release the stream's branch, once."""
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
