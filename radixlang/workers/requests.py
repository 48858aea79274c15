"""Requests of branches: routed, sent, and sent again when their worker dies. On the event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from radixlang.errors import RequestError, RuntimeClosedError, WorkersLostError
from radixlang.protocol import Completion, Delta, Generation
from radixlang.reply import AnyFuture
from radixlang.routing import RoutedRequest, Router
from radixlang.sampling_params import SamplingParams
from radixlang.workers.handles import HeldPath, WorkerDiedError, WorkerHandle
from radixlang.workers.messages import (
    BranchContent,
    EncodeRun,
    Generating,
    Question,
    WorkerReply,
    id_bytes,
)

log = logging.getLogger("radixlang.workers")
CLOSED = "the workers were closed"


@dataclass(slots=True)
class WorkerPrompt:
    """The content of a branch, and where it is held."""

    content: BranchContent
    held: HeldPath | None = None

    def copy(self) -> WorkerPrompt:
        """The prompt of a fork, which shares what is held."""
        return WorkerPrompt(self.content, None if self.held is None else self.held.shared())

    def hold(self, held: HeldPath | None) -> None:
        """Hold another path, and give the old one back."""
        if self.held is not None:
            self.held.drop()
        self.held = held


@dataclass(slots=True)
class _Stream:
    """Deltas of a generation, which go on where they ended when it is run again."""

    generation: Generation
    deltas: list[Delta] = field(default_factory=list)  # of the run in progress
    text: str = ""  # that was published

    def begin(self) -> None:
        """A run begins, the first or another."""
        self.deltas.clear()

    def hear(self, deltas: Sequence[Delta]) -> None:
        """Publish what is new of deltas.

        Raises:
            RequestError: a second run says something else than the first.
        """
        for delta in deltas:
            self.deltas.append(delta)
            whole = "".join(each.text for each in self.deltas)
            if len(whole) <= len(self.text) and self.text:
                continue
            if not whole.startswith(self.text):
                raise RequestError(
                    "a worker died while its text was read, and another one's text differs from "
                    f"{self.text[-40:]!r} on; run the row again"
                )
            cut = len(whole) - len(delta.text) < len(self.text)
            new = whole[len(self.text) :]
            self.text = whole
            self.generation.push(replace(delta, text=new) if cut else delta)


class WorkerRequests:
    """The requests of all branches of one Workers.

    Args:
        workers: in the order of their numbers.
        encode_run: of the model's tokenizer.
        closing: set before the event loop ends.
    """

    def __init__(
        self, workers: Sequence[WorkerHandle], router: Router, encode_run: EncodeRun,
        closing: threading.Event,
    ) -> None:  # fmt: skip
        self._workers = workers
        self._router = router
        self._encode_run = encode_run
        self._numbers = itertools.count(1)
        self._running: dict[Generation, tuple[WorkerHandle, int]] = {}
        self._closing = closing
        self.num_rerun = 0
        self.reason = ""  # of the last worker's death

    def path(self, content: BranchContent) -> bytes:
        """The token ids of a branch, int32, as bytes."""
        return content.path(self._encode_run)

    async def generate(
        self, prompt: WorkerPrompt, params: SamplingParams, constraint: object,
        generation: Generation,
    ) -> None:  # fmt: skip
        """Run a generation; its tokens are appended to the prompt."""
        stream = _Stream(generation)

        def ask() -> Generating:
            stream.begin()
            return Generating(params, constraint, generation.is_followed, generation.is_stopping)

        try:
            answer = await self._run(prompt, ask, params.max_tokens, stream)
        finally:
            self._running.pop(generation, None)
        stream.hear(answer.deltas)
        completion = answer.value
        assert isinstance(completion, Completion)
        assert completion.origin is not None
        ids = id_bytes(list(completion.origin.prompt_ids)) + id_bytes(completion.token_ids)
        prompt.content = replace(prompt.content, ids=ids, run=answer.run)
        if not generation.done():
            generation.set_result(completion)

    async def read(self, prompt: WorkerPrompt, asked: Question, future: AnyFuture) -> None:
        """Run a scoring or a reading of the next token; the prompt stays as it is."""
        answer = await self._run(prompt, lambda: asked, 0, None, fails_alone=future)
        if not future.done():
            future.set_result(answer.value)

    def tell(self, method: str, generation: Generation) -> None:
        """Tell the worker of a running generation to `follow` or `stop` it."""
        if generation in self._running:
            worker, number = self._running[generation]
            worker.tell(method, number)

    async def _run(
        self, prompt: WorkerPrompt, ask: Callable[[], Question], max_new: int,
        stream: _Stream | None, fails_alone: AnyFuture | None = None,
    ) -> WorkerReply:  # fmt: skip
        """Ask one worker after another until one answers."""
        while True:
            if self._closing.is_set():
                raise RuntimeClosedError(CLOSED)
            content = prompt.content
            path = self.path(content)
            route = self._router.route(RoutedRequest(content.namespace, path, max_new))
            if route is None:
                raise WorkersLostError(
                    f"all {len(self._workers)} workers have died, the last one because: "
                    f"{self.reason}. Make new Workers; `save_to=` keeps rows that have finished"
                )
            worker, number = self._workers[route.worker], next(self._numbers)
            question = ask()
            if stream is not None:
                self._running[stream.generation] = worker, number
            num_new: int | None = None
            try:
                hear = stream.hear if stream is not None else _heard_nothing
                answer = await worker.ask(number, content, question, hear)
                if isinstance(answer.value, Completion):
                    num_new = len(answer.value.token_ids)
            except WorkerDiedError as error:
                self._lose(worker, str(error))
                self.num_rerun += 1
                continue
            except asyncio.CancelledError:
                if self._closing.is_set():
                    raise RuntimeClosedError(CLOSED) from None
                raise
            finally:
                self._router.finished(route, num_new)
            self._learn(worker, answer)
            return self._taken(prompt, answer, HeldPath(worker, number), fails_alone)

    def _taken(
        self,
        prompt: WorkerPrompt,
        answer: WorkerReply,
        held: HeldPath,
        fails_alone: AnyFuture | None,
    ) -> WorkerReply:
        """The answer, or its error raised; an error of a reading that leaves the branch as it is
        goes to its future alone."""
        if answer.error is None:
            prompt.hold(held)
            return answer
        held.drop()
        if fails_alone is not None and not answer.has_failed and not fails_alone.done():
            fails_alone.set_exception(answer.error)
            return answer
        raise answer.error

    def _learn(self, worker: WorkerHandle, answer: WorkerReply) -> None:
        """Take what has changed in a worker's tree."""
        for namespace, path, num_kept in answer.changes:
            if num_kept is None:
                self._router.inserted(worker.index, namespace, path)
            else:
                self._router.evicted(worker.index, namespace, path, num_kept)

    def _lose(self, worker: WorkerHandle, reason: str) -> None:
        if not worker.is_dead:
            worker.is_dead = True
            self.reason = reason.splitlines()[0] if reason else "unknown"
            self._router.lost(worker.index)
            log.warning(
                "worker %d on %s has died; its requests run on the %d that are left: %s",
                worker.index, worker.facts.node, len(self._router.alive), self.reason,
            )  # fmt: skip


_heard_nothing: Callable[[Sequence[Delta]], None] = partial(lambda _: None)
