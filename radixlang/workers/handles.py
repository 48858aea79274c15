"""Handles of workers: calls to one actor, and the news of its death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from radixlang.errors import ParameterError, RadixlangError
from radixlang.protocol import Delta
from radixlang.workers.messages import BranchContent, Heard, Question, WorkerFacts, WorkerReply

_RELEASE_S = 0.02  # seconds in which branches that are given back gather into one call


class WorkerDiedError(Exception):
    """An actor is gone; whoever asked it asks another."""


def ray_errors() -> tuple[type[BaseException], ...]:
    """What Ray raises when an actor, its node, or an object of it is gone."""
    from ray import exceptions

    return exceptions.RayActorError, exceptions.ObjectLostError, exceptions.WorkerCrashedError


class WorkerHandle:
    """One actor, as the driver's event loop uses it.

    Args:
        index: the worker's number, which the router knows it by.
        actor: Ray's handle of a `WorkerActor`; its methods are made at run time.
    """

    def __init__(self, index: int, actor: Any, facts: WorkerFacts) -> None:
        self.index = index
        self.actor = actor
        self.facts = facts
        self.is_dead = False
        self._given_back: list[int] = []

    async def ask(
        self, number: int, content: BranchContent, question: Question,
        hear: Callable[[tuple[Delta, ...]], None],
    ) -> WorkerReply:  # fmt: skip
        """Run a request to its end; cancelling this cancels it there.

        Raises:
            WorkerDiedError: the worker is gone, and the request with it.
            ParameterError: something in the question cannot be pickled.
        """
        stream = self._sent(number, content, question)
        answer: WorkerReply | None = None
        try:
            async for reference in stream:
                told = await reference
                if isinstance(told, WorkerReply):
                    answer = told
                else:
                    hear(told.deltas)
        except ray_errors() as error:
            raise WorkerDiedError(str(error)) from error
        except asyncio.CancelledError:
            self.give_back(number)
            raise
        if answer is None:
            raise WorkerDiedError("it ended without an answer")
        return answer

    def _sent(
        self, number: int, content: BranchContent, question: Question
    ) -> AsyncIterator[Awaitable[Heard | WorkerReply]]:
        stream: AsyncIterator[Awaitable[Heard | WorkerReply]]
        try:
            stream = self.actor.ask.options(num_returns="streaming").remote(
                number, content, question
            )
        except TypeError as error:
            raise ParameterError(
                f"{question!r:.120} cannot be sent to a worker: {_reason(error)}. Functions given "
                "as logits= and constraints must be picklable; use ones that hold no lock, file, "
                "model or runtime"
            ) from error
        return stream

    def tell(self, method: str, number: int) -> None:
        """Call `follow` or `stop` of a running request."""
        getattr(self.actor, method).remote(number)

    def give_back(self, number: int) -> None:
        """Release a branch there, together with others that follow at once."""
        if not self._given_back:
            asyncio.get_running_loop().call_later(_RELEASE_S, self.flush)
        self._given_back.append(number)

    def flush(self) -> None:
        """Release the branches that were given back."""
        numbers, self._given_back = self._given_back, []
        if numbers and not self.is_dead:
            self.actor.release.remote(numbers)


@dataclass(slots=True)
class HeldPath:
    """A branch of a worker that keeps a path cached, for as many branches as share it."""

    worker: WorkerHandle
    number: int
    num_holders: int = 1

    def shared(self) -> HeldPath:
        """The same for one holder more."""
        self.num_holders += 1
        return self

    def drop(self) -> None:
        """One holder less; the last gives the branch back."""
        self.num_holders -= 1
        if not self.num_holders:
            self.worker.give_back(self.number)


def fetch(reference: object) -> Any:  # what the method returned
    """The result of a call, waiting for it on this thread.

    Raises:
        WorkerDiedError: the worker is gone.
        RadixlangError: what the worker raised.
    """
    import ray
    from ray.exceptions import RayTaskError

    try:
        return ray.get(reference)  # type: ignore[call-overload]  # a reference of Ray's
    except RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, RadixlangError) else error from None
    except ray_errors() as error:
        raise WorkerDiedError(str(error)) from error


def _reason(error: BaseException) -> str:
    """The first line of an error of Ray's that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "pickle" in line), lines[0] if lines else repr(error))
