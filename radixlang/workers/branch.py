"""A branch of Workers: its content is kept in the driver, its requests go where it is cached."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import TypeAlias

from radixlang.errors import ParameterError, RuntimeClosedError, StateClosedError
from radixlang.protocol import (
    AdapterUse,
    Branch,
    Contrast,
    Generation,
    NextToken,
    Option,
    OptionScore,
    check_next_in,
    check_next_token,
    check_num_top,
    checked_options,
)
from radixlang.remote.event_loop import LoopThread
from radixlang.remote.operation_queue import OperationQueue, Work
from radixlang.reply import AnyFuture, Reply
from radixlang.sampling_params import SamplingParams
from radixlang.workers.messages import BranchContent, Piece, ReadingNext, Scoring, ids_of
from radixlang.workers.requests import WorkerPrompt, WorkerRequests

_NO_CONTENT = BranchContent()


@dataclass(frozen=True, slots=True)
class WorkerConnection:
    """What branches have of their Workers."""

    loop: LoopThread
    requests: WorkerRequests
    num_token_ids: int


class WorkerBranch:
    """A Branch of Workers. A handle that is garbage-collected releases its branch."""

    __slots__ = ("__weakref__", "_connection", "_is_released", "_queue")

    def __init__(
        self, connection: WorkerConnection, content: BranchContent, *, is_born: bool = True
    ) -> None:
        self._connection = connection
        self._queue = OperationQueue(WorkerPrompt(content), is_born=is_born)
        self._is_released = False

    def extend(self, content: str | Sequence[int]) -> None:
        """Queue text, Markup or token ids. Raises ParameterError for anything else."""
        self._post(partial(_extend, self._queue, self._piece(content)))

    def generate(self, params: SamplingParams, constraint: object = None) -> Generation:
        """Queue a generation."""
        if not isinstance(params, SamplingParams):
            raise ParameterError(f"params must be SamplingParams, got {type(params).__name__}")
        if params.seed is None:  # a second run of it must say the same
            params = params.with_seed(secrets.randbits(63))
        requests, queue = self._connection.requests, self._queue
        generation = Generation(
            lambda: self._tell(partial(queue.cancel, generation)),
            lambda: self._tell(partial(requests.tell, "stop", generation)),
            lambda: self._tell(partial(requests.tell, "follow", generation)),
        )
        self._post(
            lambda: requests.generate(queue.prompt, params, constraint, generation), generation
        )
        return generation

    def contrast(
        self, other: Branch, params: SamplingParams, how: Contrast, constraint: object = None
    ) -> Generation:
        """Fails: the two branches may be on two workers."""
        generation = Generation()
        generation.set_exception(
            ParameterError(
                "contrast is not possible on Workers: it takes the logits of two branches in one "
                "step, and each branch runs where its own prefix is; use a Runtime"
            )
        )
        return generation

    def score(
        self, options: Sequence[Option], *, top_logprobs: int = 0
    ) -> Reply[list[OptionScore]]:
        """Queue the scoring of options, text or token ids, after the prompt so far."""
        check_num_top(top_logprobs)
        asked = Scoring(checked_options(options), top_logprobs)
        for option in asked.options:
            self._piece(option)
        requests, queue = self._connection.requests, self._queue
        future = Reply[list[OptionScore]]()
        self._post(lambda: requests.read(queue.prompt, asked, future), future)
        return future

    def next_token(
        self, among: Sequence[str | int] | None = None, top: int | None = None
    ) -> Reply[NextToken]:
        """Queue a reading of the next token's distribution; the branch itself is unchanged."""
        asked = ReadingNext(*check_next_token(among, top))
        requests, queue = self._connection.requests, self._queue
        future = Reply[NextToken]()
        self._post(lambda: requests.read(queue.prompt, asked, future), future)
        return future

    def fork(self, n: int) -> list[WorkerBranch]:
        """n branches that start where this one is once its queued operations have run."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ParameterError(f"fork needs a number of branches of at least 0, got {n!r}")
        children = [WorkerBranch(self._connection, _NO_CONTENT, is_born=False) for _ in range(n)]
        queues = [child._queue for child in children]  # not the handles, which may be dropped
        self._post(partial(_fork, self._queue, queues))
        return children

    def use_adapter(self, use: AdapterUse | None) -> None:
        """Refused: adapters are loaded into one runtime."""
        if use is not None:
            raise ParameterError(
                "adapters are not possible on Workers yet; use a Runtime, or workers whose model "
                "is the merged one"
            )

    def tokens(self) -> Reply[tuple[int, ...]]:
        """Queue a reading of the branch's token ids, pending text tokenised."""
        future = Reply[tuple[int, ...]]()
        self._post(partial(_tokens, self._connection.requests, self._queue, future), future)
        return future

    def expect(self, next_in: int | None) -> None:
        """A hint, which is not sent."""
        check_next_in(next_in)

    def keep(self) -> None:
        """A hint, which is not sent: a worker with a folder writes what it evicts, and at close."""

    def cancel(self) -> None:
        """Fail queued and running operations with a CancelledError, then release."""
        self._is_released = True
        self._tell(partial(_cancel, self._queue))

    def release(self) -> None:
        """Free the memory that only this branch holds, once its queued operations have run."""
        if not self._is_released:
            self._is_released = True
            self._post(partial(_release, self._queue))

    def __del__(self) -> None:
        self.release()

    def _piece(self, content: str | Sequence[int]) -> Piece:
        if isinstance(content, str):
            return content
        try:
            ids = tuple(map(index, content))
        except TypeError:
            raise ParameterError(
                f"a branch is extended by text or token ids, got {content!r:.80}"
            ) from None
        wrong = [each for each in ids if not 0 <= each < self._connection.num_token_ids]
        if wrong:
            raise ParameterError(
                f"token id {wrong[0]} is not in this model's vocabulary of "
                f"{self._connection.num_token_ids}"
            )
        return ids

    def _tell(self, what: Callable[[], object]) -> None:
        self._connection.loop.post(what)

    def _post(self, work: Work, future: AnyFuture | None = None) -> None:
        is_open = self._connection.loop.post(partial(self._queue.add, work, future))
        if not is_open and future is not None:
            future.set_exception(RuntimeClosedError("the workers were closed"))


# ---- on the event loop

_Queue: TypeAlias = "OperationQueue[WorkerPrompt]"


async def _extend(queue: _Queue, piece: Piece) -> None:
    queue.prompt.content = queue.prompt.content.extended(piece)


async def _fork(queue: _Queue, children: Sequence[_Queue]) -> None:
    for child in children:
        if not child.is_born:
            child.prompt, child.error = queue.prompt.copy(), queue.error
            child.is_born = True
            child.go_on()


async def _tokens(
    requests: WorkerRequests, queue: _Queue, future: Reply[tuple[int, ...]]
) -> None:  # fmt: skip
    path = requests.path(queue.prompt.content)
    if not future.done():
        future.set_result(ids_of(path))


async def _release(queue: _Queue) -> None:
    queue.error = queue.error or StateClosedError("the branch was released; fork it before")
    queue.prompt.hold(None)
    queue.prompt.content = _NO_CONTENT


def _cancel(queue: _Queue) -> None:
    queue.cancel(None)
    queue.add(partial(_release, queue), None)
