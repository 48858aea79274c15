"""Commands of other threads to the engine's thread, and their queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from radixlang.errors import RuntimeClosedError
from radixlang.process_owner import ProcessOwner
from radixlang.protocol import Generation
from radixlang.reply import AnyFuture
from radixlang.runtime.requests.branch_state import BranchState, Operation, futures_of


class Requested(Protocol):
    """What commands ask of the engine, on its thread."""

    def queue(self, state: BranchState, operation: Operation) -> None:
        """Queue an operation of a branch, and run what can be run."""

    def cancel(self, state: BranchState, future: AnyFuture | None) -> None:
        """Fail a branch, or (with a future) only if that future has not ended."""

    def stop(self, state: BranchState, generation: Generation) -> None:
        """End a generation with the text it has."""

    def call(self, function: Callable[[], object], future: AnyFuture) -> None:
        """Run a function and answer with its value."""


@dataclass(frozen=True, slots=True)
class Post:
    """An operation for a branch."""

    state: BranchState
    operation: Operation

    def hand_to(self, requests: Requested) -> None:
        """Let the engine do it."""
        requests.queue(self.state, self.operation)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a branch, or (with a future) only if that future has not ended."""

    state: BranchState
    future: AnyFuture | None = None

    def hand_to(self, requests: Requested) -> None:
        """Let the engine do it."""
        requests.cancel(self.state, self.future)


@dataclass(frozen=True, slots=True)
class Stop:
    """End a generation here, with the text it has."""

    state: BranchState
    generation: Generation

    def hand_to(self, requests: Requested) -> None:
        """Let the engine do it."""
        requests.stop(self.state, self.generation)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """Run a function on the engine's thread."""

    function: Callable[[], object]
    future: AnyFuture

    def hand_to(self, requests: Requested) -> None:
        """Let the engine do it."""
        requests.call(self.function, self.future)


Command = Post | Cancel | Stop | FunctionCall


class Inbox:
    """Commands in order of arrival. `put` never blocks and takes no lock of ours, since it may be
    called inside a garbage collection on any thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Command | None] = SimpleQueue()
        self.owner = ProcessOwner("the runtime")
        self._is_closed = False
        self._why = "the runtime is closed; make a new one"

    @property
    def is_closed(self) -> bool:
        """Whether no thread takes commands: after `close`, and in a forked child process."""
        return self._is_closed or not self.owner.is_here

    def put(self, command: Command) -> None:
        """Queue a command; after `close` it is answered with RuntimeClosedError at once."""
        self._queue.put(command)
        if self.is_closed:
            self._refuse_all()

    def put_stop(self) -> None:
        """Let `take` return None after the commands queued so far."""
        self._queue.put(None)

    def take(self, block: bool, timeout_s: float | None = None) -> Command | None:
        """The next command, None for the stop. Raises queue.Empty if there is none in time."""
        return self._queue.get(block, timeout_s)

    def close(self, why: BaseException | None = None) -> None:
        """Answer all queued and later commands with RuntimeClosedError.

        `why` is the error that ended the engine, if it was not asked to end.
        """
        if why is not None:
            self._why = f"the runtime is closed: its engine ended with {why!r}; make a new one"
        self._is_closed = True
        self._refuse_all()

    def closed_error(self) -> RuntimeClosedError:
        """The error of using a closed runtime; it says why it was closed."""
        if not self.owner.is_here:
            return self.owner.error()
        return RuntimeClosedError(self._why)

    def _refuse_all(self) -> None:
        while True:
            try:
                command = self._queue.get(block=False)
            except Empty:
                return
            error = self.closed_error()
            for future in _answerable(command, error):
                if not future.done():
                    future.set_exception(error)


def _answerable(command: Command | None, error: BaseException) -> list[AnyFuture]:
    match command:
        case Post(state, operation):
            state.error = state.error or error
            return futures_of(operation)
        case FunctionCall(_, future):
            future.cancel()  # its caller runs the function, see EngineCore.call
    return []
