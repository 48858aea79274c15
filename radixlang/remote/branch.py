"""A branch on a server: its prompt is kept here, and sent with every request.

With a server that takes and returns token ids the branch holds ids, and is as exact as a local
one. With any other it holds text and turns, and what was generated is tokenised again there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
from radixlang.remote.requests import RemotePrompt, RemoteRequests
from radixlang.reply import AnyFuture, Reply
from radixlang.sampling_params import SamplingParams


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
        self._queue = OperationQueue(RemotePrompt(), is_born=is_born)
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
