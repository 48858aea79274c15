"""The generations of one request: started together, read as they come, ended with their client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from radixlang.errors import DeadlineError, IncompleteError
from radixlang.protocol import (
    Branch,
    Completion,
    Delta,
    Generation,
    OptionScore,
    TokenLogprob,
    Usage,
)
from radixlang.reply import Reply
from radixlang.sampling_params import SamplingParams
from radixlang.serving.inlet import Inlet
from radixlang.serving.served_backend import ServedBackend

Prompt = Sequence[str | Sequence[int]]  # pieces, as Branch.extend takes them


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation of a request. `prompt` is the number of its prompt, `place` its own."""

    prompt: int
    place: int
    branch: Branch
    generation: Generation

    def outcome(self) -> Completion:
        """The finished generation; one cut off inside its constraint is one of partial text.

        Raises:
            RadixlangError: the generation failed.
        """
        try:
            return self.generation.result(0)
        except IncompleteError as error:
            usage = Usage(error.num_prompt_tokens, error.num_cached_tokens)
            return Completion(error.partial, error.token_ids, "length", usage=usage)


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """A prompt's tokens, each with its log-probability after those before it; the first has
    none."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob | None, ...]


class SamplingJob:
    """All generations of one request.

    The prompt of several samples is a branch that is forked, so it is computed and held once. The
    memory of a generation is freed when it ends, however slowly its client reads.
    """

    def __init__(self, backend: ServedBackend, namespace: str, timeout_s: float) -> None:
        self.backend = backend
        self._namespace = namespace
        self._deadline_s = asyncio.get_running_loop().time() + timeout_s
        self._timeout_s = timeout_s
        self.samples: list[Sample] = []
        self._others: list[Branch] = []  # that read or score prompts

    async def read_prompts(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        """The token ids of prompts."""
        futures = []
        for pieces in prompts:
            branch = self._new_branch(pieces)
            self._others.append(branch)
            futures.append(branch.tokens())
        await self._ended(futures)
        return [future.result(0) for future in futures]

    async def score_prompts(
        self, prompts: Sequence[tuple[int, ...]], num_top: int
    ) -> list[ScoredPrompt]:
        """Score every token of prompts; what is computed stays cached for their generations."""
        futures = []
        for ids in prompts:
            if len(ids) > 1:
                branch = self._new_branch([ids[:1]])
                self._others.append(branch)
                futures.append(branch.score([ids[1:]], top_logprobs=num_top))
        await self._ended(futures)
        scores = iter(futures)
        return [
            _scored(ids, next(scores).result(0)[0] if len(ids) > 1 else None) for ids in prompts
        ]

    def start(
        self, prompts: Sequence[Prompt], num_samples: int, constraint: Any,
        params_of: Callable[[int], SamplingParams], *,
        new_root: Callable[[], Branch] | None = None,
        keep: Callable[[Sample], None] | None = None,
    ) -> None:  # fmt: skip
        """Begin `num_samples` generations of each prompt.

        Args:
            new_root: makes the branches that the prompts are appended to; empty ones by default.
            keep: takes over the branch of a sample that has ended; by default it is released.
        """
        for number, pieces in enumerate(prompts):
            root = self._new_branch(pieces, new_root)
            branches = [root] if num_samples == 1 else root.fork(num_samples)
            if num_samples > 1:
                root.release()
            for branch in branches:
                place = len(self.samples)
                generation = branch.generate(params_of(place), constraint)
                sample = Sample(number, place, branch, generation)
                self.samples.append(sample)
                generation.when_done(branch.release if keep is None else partial(keep, sample))

    async def wait(self) -> None:
        """Wait until every generation has ended.

        Raises:
            DeadlineError: the request's time is over.
        """
        await self._ended([sample.generation for sample in self.samples])

    async def _ended(self, replies: Sequence[Reply[Any]]) -> None:
        inlet: Inlet[None] = Inlet()
        for reply in replies:
            reply.when_done(partial(inlet.put, None))
        num_left = len(replies)
        while num_left:
            num_left -= len(await self._in_time(inlet.take()))

    async def deltas(self) -> AsyncIterator[tuple[Sample, Delta | None]]:
        """Every delta as it comes, and None at the end of a generation.

        Raises:
            DeadlineError: the request's time is over.
        """
        inlet: Inlet[tuple[Sample, Delta | None]] = Inlet()
        for sample in self.samples:
            sample.generation.subscribe(partial(_pass_on, inlet, sample))
        num_left = len(self.samples)
        while num_left:
            for sample, delta in await self._in_time(inlet.take()):
                num_left -= delta is None
                yield sample, delta

    def close(self) -> None:
        """End what still runs, and free its memory."""
        for sample in self.samples:
            if not sample.generation.done():
                sample.branch.cancel()
        for branch in self._others:
            branch.cancel()

    def _new_branch(self, pieces: Prompt, new_root: Callable[[], Branch] | None = None) -> Branch:
        branch = new_root() if new_root else self.backend.new_branch(namespace=self._namespace)
        for piece in pieces:
            branch.extend(piece)
        return branch

    async def _in_time(self, work: Any) -> Any:
        left = self._deadline_s - asyncio.get_running_loop().time()
        try:
            return await asyncio.wait_for(work, max(left, 0))
        except asyncio.TimeoutError:
            raise DeadlineError(f"the request took longer than {self._timeout_s:g} s") from None


def _scored(ids: tuple[int, ...], score: OptionScore | None) -> ScoredPrompt:
    found: list[TokenLogprob | None] = [None]
    if score is not None:
        tops = score.top or ((),) * len(score.logprobs)
        parts = zip(score.token_ids, score.logprobs, tops, strict=True)
        found += [TokenLogprob(*part) for part in parts]
    return ScoredPrompt(ids, tuple(found))


def _pass_on(inlet: Inlet[Any], sample: Sample, delta: Delta | None) -> None:
    inlet.put((sample, delta))
