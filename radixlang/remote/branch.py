"""A branch on a server: its prompt is kept here, and sent with every request.

With a server that takes and returns token ids the branch holds ids, and is as exact as a local
one. With any other it holds text and turns, and what was generated is tokenised again there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from radixlang.errors import (
    CancelledError,
    ParameterError,
    RuntimeClosedError,
    StateClosedError,
)
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
from radixlang.remote.requests import RemotePrompt, RemoteRequests
from radixlang.reply import AnyFuture, Reply
from radixlang.sampling_params import SamplingParams

Work: TypeAlias = Callable[[], Awaitable[None]]


class _Queue:
    """The operations of one branch, run in order on the event loop.

    `error` is the first error, with which every later operation fails. A queue that is not born
    waits for its fork.
    """

    def __init__(self, *, is_born: bool) -> None:
        self.prompt = RemotePrompt()
        self.error: BaseException | None = None
        self.is_born = is_born
        self.running: tuple[asyncio.Future[None], AnyFuture | None] | None = None
        self.reading: asyncio.Future[None] | None = None  # of a generation's stream
        self._works: deque[tuple[Work, AnyFuture | None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, work: Work, future: AnyFuture | None) -> None:
        """Run after what is queued."""
        self._works.append((work, future))
        self.go_on()

    def go_on(self) -> None:
        """Run what is queued, unless that goes on already."""
        if self.is_born and self._works and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._works:
                work, future = self._works.popleft()
                if future is not None and future.done():
                    continue
                if self.error is not None and future is not None:
                    future.set_exception(self.error)
                    continue
                await self._run_one(work, future)
        finally:
            self._task = None

    async def _run_one(self, work: Work, future: AnyFuture | None) -> None:
        inner = asyncio.ensure_future(work())
        self.running = (inner, future)
        try:
            await inner
        except asyncio.CancelledError:
            self.fail(CancelledError("the request was cancelled"), future)
            if not inner.cancelled():
                raise  # this task, at the end of the backend
        except BaseException as error:
            self.fail(error, future)
        finally:
            self.running = None

    def fail(self, error: BaseException, future: AnyFuture | None) -> None:
        """Keep the first error, and end a future with it."""
        self.error = self.error or error
        if future is not None and not future.done():
            future.set_exception(error)

    def cancel(self, future: AnyFuture | None) -> None:
        """Cancel one operation, or (None) everything."""
        if future is not None and future.done():
            return
        error = CancelledError("the branch was cancelled by its owner")
        if self.running is not None and future in (None, self.running[1]):
            self.running[0].cancel()
        self.fail(error, future)
        if future is None:
            for _, queued in self._works:
                self.fail(error, queued)

    def stop(self, generation: Generation) -> None:
        """End a generation that is being read."""
        if self.running is not None and self.running[1] is generation and self.reading is not None:
            self.reading.cancel()


@dataclass(frozen=True, slots=True)
class Connection:
    """What branches have of their Remote: the loop that runs their requests."""

    loop: LoopThread
    requests: RemoteRequests


class RemoteBranch:
    """A Branch of a Remote."""

    __slots__ = ("_is_released", "_namespace", "_queue", "_remote")

    def __init__(self, remote: Connection, namespace: str, *, is_born: bool = True) -> None:
        self._remote = remote
        self._namespace = namespace
        self._queue = _Queue(is_born=is_born)
        self._is_released = False

    def extend(self, content: str | Sequence[int]) -> None:
        """Queue text, Markup or token ids."""
        if not isinstance(content, str) and not self._remote.requests.able.tokens:
            raise ParameterError(
                f"{self._remote.requests.able.kind} takes no token ids; extend by text"
            )
        self._post(partial(self._extend, content if isinstance(content, str) else tuple(content)))

    def generate(self, params: SamplingParams, constraint: object = None) -> Generation:
        """Queue a generation."""
        generation = Generation(
            lambda: self._tell(partial(self._queue.cancel, generation)),
            lambda: self._tell(partial(self._queue.stop, generation)),
        )
        work = partial(self._remote.requests.generate, self._queue, self._namespace, params,
                       constraint, generation)  # fmt: skip
        self._post(work, generation)
        return generation

    def contrast(
        self, other: Branch, params: SamplingParams, how: Contrast, constraint: object = None
    ) -> Generation:
        """Fails: a server tells no logits."""
        generation = Generation()
        generation.set_exception(
            ParameterError("contrast is not possible here: logits do not leave a server")
        )
        return generation

    def score(
        self, options: Sequence[Option], *, top_logprobs: int = 0
    ) -> Reply[list[OptionScore]]:
        """Queue the scoring of options."""
        check_num_top(top_logprobs)
        future = Reply[list[OptionScore]]()
        work = partial(self._remote.requests.score, self._queue.prompt, self._namespace,
                       checked_options(options), top_logprobs, future)  # fmt: skip
        self._post(work, future)
        return future

    def next_token(
        self, among: Sequence[str | int] | None = None, top: int | None = None
    ) -> Reply[NextToken]:
        """Fails: a server tells the likeliest tokens at most, and no entropy."""
        check_next_token(among, top)
        future = Reply[NextToken]()
        future.set_exception(
            ParameterError(
                "next_token is not possible here: a server does not tell the whole distribution; "
                "use gen(max_tokens=1, top_logprobs=…)"
            )
        )
        return future

    def fork(self, n: int) -> list[RemoteBranch]:
        """n branches with the same prompt, once what is queued has run."""
        children = [RemoteBranch(self._remote, self._namespace, is_born=False) for _ in range(n)]
        self._post(partial(self._fork, children))
        return children

    def use_adapter(self, use: AdapterUse | None) -> None:
        """Refused: a request has the model that it names."""
        if use is not None:
            raise ParameterError("adapters are not possible here: name the model of the request")

    def tokens(self) -> Reply[tuple[int, ...]]:
        """Queue a reading of the token ids."""
        future = Reply[tuple[int, ...]]()
        self._post(partial(self._tokens, future), future)
        return future

    def expect(self, next_in: int | None) -> None:
        """A hint, which no server takes."""
        check_next_in(next_in)

    def keep(self) -> None:
        """A hint, which no server takes."""

    def cancel(self) -> None:
        """Fail queued and running operations with a CancelledError, then release."""
        self._is_released = True
        self._tell(partial(self._queue.cancel, None))

    def release(self) -> None:
        """Refuse further operations once what is queued has run."""
        if not self._is_released:
            self._is_released = True
            self._post(self._release)

    def _tell(self, what: Callable[[], None]) -> None:
        self._remote.loop.post(what)

    def _post(self, work: Work, future: AnyFuture | None = None) -> None:
        is_open = self._remote.loop.post(partial(self._queue.add, work, future))
        if not is_open and future is not None:
            future.set_exception(RuntimeClosedError("the remote backend was closed"))

    # ---- on the event loop

    async def _extend(self, content: str | tuple[int, ...]) -> None:
        prompt = self._queue.prompt
        if isinstance(content, str):
            prompt.run.append(content)
        else:
            await self._remote.requests.settle(prompt)
            prompt.ids += content

    async def _fork(self, children: Sequence[RemoteBranch]) -> None:
        for child in children:
            queue = child._queue
            queue.prompt, queue.error = self._queue.prompt.copy(), self._queue.error
            queue.is_born = True
            queue.go_on()

    async def _tokens(self, future: Reply[tuple[int, ...]]) -> None:
        prompt = self._queue.prompt
        ids = await self._remote.requests.run_ids(prompt)
        if not future.done():
            future.set_result((*prompt.ids, *ids))

    async def _release(self) -> None:
        queue = self._queue
        queue.error = queue.error or StateClosedError("the branch was released; fork it before")
        queue.prompt = RemotePrompt()
