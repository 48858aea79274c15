"""The actor: a Runtime in a process of Ray's, asked by the driver.

It keeps a branch of the engine for each request that has ended, until the driver gives it back: its
lease keeps the path cached. Everything else of a branch is the driver's.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from radixlang.errors import picklable
from radixlang.protocol import Completion, Delta, Generation, NextToken, OptionScore
from radixlang.reply import Reply
from radixlang.workers.messages import (
    BranchContent,
    Change,
    Generating,
    Heard,
    Question,
    ReadingNext,
    Scoring,
    WorkerFacts,
    WorkerReply,
)

if TYPE_CHECKING:
    from radixlang.runtime.models.model import LoadedModel
    from radixlang.runtime.requests.branch import EngineBranch
    from radixlang.runtime.runtime import Runtime
    from radixlang.runtime.runtime_config import RuntimeOptions

EngineReply: TypeAlias = "Reply[Completion] | Reply[list[OptionScore]] | Reply[NextToken]"


class WorkerActor:
    """Holds a Runtime; every method is called by the driver, on one event loop."""

    def __init__(self) -> None:
        self._loaded: Runtime | None = None
        self._branches: dict[int, EngineBranch] = {}
        self._running: dict[int, _Running] = {}

    @property
    def _runtime(self) -> Runtime:
        assert self._loaded is not None  # `load` is the first call of a driver
        return self._loaded

    async def load(
        self, model: str | Path | Callable[[], LoadedModel] | None, options: RuntimeOptions
    ) -> WorkerFacts:
        """Load the model; `model` may be a function that makes it."""
        from radixlang.runtime.runtime import Runtime  # here, so that the driver needs no torch

        made = model() if callable(model) else model
        self._loaded = runtime = Runtime(made, **options)
        self._changes = runtime.watch_tree()
        return WorkerFacts(
            runtime.model_name, runtime.context_length, runtime.num_token_ids, runtime.tokenizer,
            runtime.think_tags, socket.gethostname(), os.getpid(),
        )  # fmt: skip

    async def ask(
        self, number: int, content: BranchContent, question: Question
    ) -> AsyncIterator[Heard | WorkerReply]:
        """Run a request on a branch of this content, which is kept under the number."""
        branch = self._branches[number] = self._branch(content)
        try:
            future = await self._post(branch, question)
        except Exception as error:
            yield self._answer(branch, None, error, ())
            return
        running = self._running[number] = _Running(future, asyncio.get_running_loop())
        if isinstance(question, Generating):
            running.follow(question.is_followed)
            running.stop(question.is_stopping)
        num_heard = 0
        try:
            while not future.done():
                await running.woken()
                deltas = running.deltas(num_heard)
                if deltas and not future.done():
                    num_heard += len(deltas)
                    yield Heard(deltas)
        finally:
            self._running.pop(number, None)
        failure = future.exception()
        value = None if failure is not None else future.result()
        yield self._answer(branch, value, failure, running.all_deltas()[num_heard:])

    async def follow(self, number: int) -> None:
        """Send the deltas of a generation as they come."""
        if number in self._running:
            self._running[number].follow(True)

    async def stop(self, number: int) -> None:
        """End a generation and keep its text."""
        if number in self._running:
            self._running[number].stop(True)

    async def release(self, numbers: Sequence[int]) -> None:
        """Give branches back; what runs on them is cancelled."""
        for number in numbers:
            branch = self._branches.pop(number, None)
            if branch is not None and number in self._running:
                branch.cancel()
            elif branch is not None:
                branch.release()

    async def compile_constraint(self, spec: object) -> None:
        """Compile a constraint, so that errors in it are known and later requests find it."""
        await asyncio.to_thread(self._runtime.compile_constraint, spec)

    async def call(self, name: str) -> object:
        """The result of a method of the runtime without arguments: stats, audit, …"""
        return await asyncio.to_thread(getattr(self._runtime, name))

    async def close(self) -> None:
        """Close the runtime."""
        if self._loaded is not None:
            await asyncio.to_thread(self._loaded.close)

    def _branch(self, content: BranchContent) -> EngineBranch:
        branch: EngineBranch = self._runtime.new_branch(namespace=content.namespace)
        if content.ids:
            branch.extend(np.frombuffer(content.ids, np.int32).tolist())
        for piece in content.run:
            branch.extend(piece)
        return branch

    async def _post(self, branch: EngineBranch, question: Question) -> EngineReply:
        match question:
            case Generating(params, spec):
                constraint = None
                if spec is not None:
                    constraint = await asyncio.to_thread(self._runtime.compile_constraint, spec)
                return branch.generate(params, constraint)
            case Scoring(options, num_top):
                return branch.score(options, top_logprobs=num_top)
            case ReadingNext(among, top):
                return branch.next_token(among, top)

    def _answer(
        self, branch: EngineBranch, value: object, error: BaseException | None,
        deltas: tuple[Delta, ...],
    ) -> WorkerReply:  # fmt: skip
        changes: list[Change] = [
            (each.namespace, each.path, each.num_kept) for each in self._changes.take()
        ]
        sent = None if error is None else picklable(error)
        return WorkerReply(value, sent, deltas, branch.run, branch.has_failed, tuple(changes))


class _Running:
    """A request of the engine, and what wakes its coroutine."""

    def __init__(self, future: EngineReply, loop: asyncio.AbstractEventLoop) -> None:
        self._future = future
        self._loop = loop
        self._event = asyncio.Event()
        self._is_followed = False
        future.when_done(self._wake)

    async def woken(self) -> None:
        """Wait until something has changed."""
        await self._event.wait()
        self._event.clear()

    def follow(self, is_wanted: bool) -> None:
        """Wake with every delta from here on."""
        if is_wanted and not self._is_followed and isinstance(self._future, Generation):
            self._is_followed = True
            self._future.subscribe(lambda _: self._wake())

    def stop(self, is_wanted: bool) -> None:
        """End the generation and keep its text."""
        if is_wanted and isinstance(self._future, Generation):
            self._future.stop()

    def deltas(self, start: int) -> tuple[Delta, ...]:
        """Deltas from an index on, if anybody wants them now."""
        return self.all_deltas()[start:] if self._is_followed else ()

    def all_deltas(self) -> tuple[Delta, ...]:
        """All deltas; asking for them makes the engine publish every token."""
        return self._future.deltas if isinstance(self._future, Generation) else ()

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)
