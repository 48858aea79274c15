"""The fake's branches: a linked list of contents, operations run in order by one worker."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from radixlang.errors import CancelledError, RequestError, RuntimeClosedError
from radixlang.protocol import (
    AdapterUse,
    Branch,
    Completion,
    Contrast,
    Delta,
    Generation,
    NextToken,
    Option,
    OptionScore,
    TokenLogprob,
    check_next_in,
    check_next_token,
    check_num_top,
    checked_options,
)
from radixlang.reply import Reply
from radixlang.sampling_params import SamplingParams

if TYPE_CHECKING:
    from radixlang.testing.fake_backend import FakeBackend

T = TypeVar("T")


class Link:
    """One content of a branch, linked to the one before it."""

    __slots__ = ("content", "parent")

    def __init__(self, parent: Link | None, content: str | tuple[int, ...]) -> None:
        self.parent = parent
        self.content = content


class FakeBranch:
    """A Branch of the FakeBackend. Operations queue while a generation streams with a delay."""

    __slots__ = ("backend", "busy", "error", "is_open", "namespace", "plan", "queue", "running",
                 "tail")  # fmt: skip

    def __init__(
        self, backend: FakeBackend, namespace: str, tail: Link | None = None, busy: bool = False
    ) -> None:
        self.backend = backend
        self.namespace = namespace
        self.tail = tail
        self.busy = busy
        self.is_open = True
        self.error: BaseException | None = None
        self.queue: deque[Callable[[], None]] | None = None
        self.running: Generation | None = None
        self.plan: Plan | None = None

    # -- the protocol: every method posts and returns -----------------------------------

    def extend(self, content: str | Sequence[int]) -> None:
        """Queue text or token ids."""
        held = content if isinstance(content, str) else tuple(content)
        self._post(partial(self._extend, held))

    def generate(self, params: SamplingParams, constraint: object | None = None) -> Generation:
        """Queue a generation by the script."""
        generation = Generation()
        generation._on_cancel = partial(self._cancel_generation, generation)
        generation._on_stop = partial(self._post_stop, generation)
        self._post(partial(self._generate, params, constraint, generation), generation)
        return generation

    def contrast(
        self, other: Branch, params: SamplingParams, how: Contrast, constraint: object | None = None
    ) -> Generation:
        """Refuse, as a script has no logits; where tokens are only counted, count both branches."""
        if self.backend.only_counts and isinstance(other, FakeBranch):
            generation = self.generate(params, constraint)
            other._post(partial(other._take_part, generation))
            return generation
        generation = Generation()
        self._post(partial(_fail, generation, self.backend.without_logits("contrast")), generation)
        return generation

    def score(
        self, options: Sequence[Option], *, top_logprobs: int = 0
    ) -> Reply[list[OptionScore]]:
        """Queue the scoring of options by the script."""
        check_num_top(top_logprobs)
        future = Reply[list[OptionScore]]()
        self._post(partial(self._score, checked_options(options), top_logprobs, future), future)
        return future

    def next_token(
        self, among: Sequence[str | int] | None = None, top: int | None = None
    ) -> Reply[NextToken]:
        """Refuse: a script has no logits."""
        check_next_token(among, top)
        future = Reply[NextToken]()
        self._post(partial(_fail, future, self.backend.without_logits("next_token")), future)
        return future

    def use_adapter(self, use: AdapterUse | None) -> None:
        """Nothing: the script's answers are its own."""

    def fork(self, n: int) -> list[Branch]:
        """n branches that share the list so far."""
        children = [FakeBranch(self.backend, self.namespace, busy=True) for _ in range(n)]
        self.backend.count_branches(n)
        self._post(partial(self._fork, children))
        return list[Branch](children)

    def tokens(self) -> Reply[tuple[int, ...]]:
        """Queue a reading of the token ids."""
        future = Reply[tuple[int, ...]]()
        self._post(partial(self._tokens, future), future)
        return future

    def expect(self, next_in: int | None) -> None:
        """Queue a hint; the backend lists it in `expected`."""
        self._post(partial(self._expect, check_next_in(next_in)))

    def keep(self) -> None:
        """A hint, for nothing here outlives the process."""

    def cancel(self) -> None:
        """Fail queued and running operations, then release."""
        self.backend.post(self._cancel)

    def release(self) -> None:
        """Free the branch after its queued operations. Idempotent."""
        self._post(self._release)

    # -- on the worker ------------------------------------------------------------------

    def _post(self, work: Callable[[], None], future: Future[T] | None = None) -> None:
        try:
            self.backend.post(partial(self._in_turn, work))
        except RuntimeClosedError as error:
            if future is None:
                return  # nothing to extend or free any more
            _fail(future, error)

    def _in_turn(self, work: Callable[[], None]) -> None:
        if self.busy:
            if self.queue is None:
                self.queue = deque()
            self.queue.append(work)
        else:
            work()

    def resume(self) -> None:
        """Run queued operations, as the branch is idle again."""
        self.busy = False
        while self.queue and not self.busy:
            self.queue.popleft()()
        if not self.queue:
            self.queue = None

    def _extend(self, content: str | tuple[int, ...]) -> None:
        if self.is_open:
            if not isinstance(content, str):
                self.settle()  # text before token ids is a run of its own
            self.tail = Link(self.tail, content)

    def _expect(self, next_in: int | None) -> None:
        if self.is_open and self.error is None:
            pieces: list[str] = []
            link = self.tail
            while link is not None:
                content = link.content
                pieces.append(content if isinstance(content, str) else self.backend.decode(content))
                link = link.parent
            self.backend._expected.append(("".join(reversed(pieces)), next_in))

    def _fork(self, children: list[FakeBranch]) -> None:
        for child in children:
            child.tail = self.tail
            child.error = self.error or self._closed_error()
            child.resume()

    def _closed_error(self) -> BaseException | None:
        return None if self.is_open else RequestError("the branch was released before this call")

    def _tokens(self, future: Future[tuple[int, ...]]) -> None:
        error = self.error or self._closed_error()
        if error is not None:
            _fail(future, error)
        else:
            future.set_result(tuple(self.settle()))

    def settle(self) -> list[int]:
        """All token ids; the pending run of text is tokenised and kept as tokens."""
        pending: list[str] = []
        link = self.tail
        while link is not None and isinstance(link.content, str):
            pending.append(link.content)
            link = link.parent
        if pending:
            ids = self.backend.codec.encode_run(pending[::-1], at_start=link is None)
            self.tail = Link(link, tuple(ids))
        chunks: list[tuple[int, ...]] = []
        link = self.tail
        while link is not None:
            assert isinstance(link.content, tuple)
            chunks.append(link.content)
            link = link.parent
        return [token for chunk in reversed(chunks) for token in chunk]

    def _score(
        self, options: Sequence[Option], num_top: int, future: Future[list[OptionScore]]
    ) -> None:
        error = self.error or self._closed_error()
        try:
            if error is not None:
                raise error
            prompt = self.settle()
            future.set_result(self.backend.score_options(self.namespace, prompt, options, num_top))
        except BaseException as failure:  # a script is a user's function
            self.error = failure
            _fail(future, failure)

    def _generate(self, params: SamplingParams, constraint: object, generation: Generation) -> None:
        error = self.error or self._closed_error()
        if generation.done():
            return
        if error is not None:
            generation.fail(error)
            return
        try:
            plan = self.backend.answer(self.namespace, self.settle(), params, constraint)
        except BaseException as failure:  # a script is a user's function
            self.error = failure
            generation.fail(failure)
            return
        self.running, self.plan = generation, plan
        self.busy = True
        self._play(generation, plan)

    def _take_part(self, generation: Generation) -> None:
        """Append a generation that another branch has made with this one."""
        self.error = self.error or generation.exception()
        if self.error is None and self.is_open:
            completion = generation.result()
            self.backend.take_part(self.namespace, self.settle(), completion)
            self.tail = Link(self.tail, completion.token_ids)

    def _play(self, generation: Generation, plan: Plan) -> None:
        """Push deltas one by one, each after the delay; then end."""
        while plan.num_played < len(plan.deltas):
            if generation.done():
                return
            if generation.is_stopping:
                self.backend.cut_short(plan)
                break
            if self.backend.delay:
                step = partial(self._push_then_play, generation, plan)
                self.backend.post_later(self.backend.delay, step)
                return
            self._push(generation, plan)
        self._end(generation, plan)

    def _push_then_play(self, generation: Generation, plan: Plan) -> None:
        if not generation.done():
            self._push(generation, plan)
            self._play(generation, plan)

    def _push(self, generation: Generation, plan: Plan) -> None:
        plan.num_played += 1
        generation.push(plan.deltas[plan.num_played - 1])

    def _end(self, generation: Generation, plan: Plan) -> None:
        self.running = self.plan = None
        if plan.error is not None:
            self.error = plan.error
            generation.fail(plan.error)
        elif plan.completion is not None:
            self.tail = Link(self.tail, plan.completion.token_ids)
            self.backend.keep(self.namespace, self.settle(), plan.completion)
            generation.set_result(plan.completion)
        self.resume()

    def _post_stop(self, generation: Generation) -> None:
        with suppress(RuntimeClosedError):
            self.backend.post(partial(self._end_early, generation))

    def _end_early(self, generation: Generation) -> None:
        if self.running is generation and self.plan is not None and not generation.done():
            self.backend.cut_short(self.plan)
            self._end(generation, self.plan)

    def _cancel_generation(self, generation: Generation) -> None:
        self.backend.post(partial(self._stop, generation))

    def _stop(self, generation: Generation) -> None:
        if not generation.done():
            self.error = CancelledError("the generation was cancelled by its owner")
            generation.fail(self.error)
            if self.running is generation:
                self.running = self.plan = None
                self.resume()

    def _cancel(self) -> None:
        self.error = self.error or CancelledError("the branch was cancelled by its owner")
        if self.running is not None:
            self._stop(self.running)
        self.resume()
        self._release()

    def _release(self) -> None:
        if self.is_open:
            self.is_open = False
            self.tail = None
            self.backend.count_branches(-1)


def _fail(future: Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class Plan:
    """The plan of a generation: deltas, then a completion or an error."""

    __slots__ = ("completion", "constraint", "deltas", "error", "num_played")

    def __init__(
        self, deltas: list[Delta], completion: Completion | None, error: BaseException | None,
        constraint: object = None,
    ) -> None:  # fmt: skip
        self.deltas = deltas
        self.completion = completion
        self.error = error
        self.constraint = constraint
        self.num_played = 0  # deltas that have been pushed


def with_logprobs(deltas: list[Delta], logprobs: Sequence[TokenLogprob] | None) -> list[Delta]:
    """The deltas with the log-probabilities of their tokens."""
    if logprobs is None:
        return deltas
    rest = iter(logprobs)
    return [replace(d, logprobs=tuple(islice(rest, len(d.token_ids)))) for d in deltas]


def fake_logprobs(
    prompt: Sequence[int], token_ids: Sequence[int], params: SamplingParams
) -> tuple[TokenLogprob, ...] | None:
    """Reproducible log-probabilities between -1 and 0, from a hash of prompt and token."""
    if not params.logprobs and not params.top_logprobs:
        return None
    found = []
    for index, token in enumerate(token_ids):
        key = f"{len(prompt)}|{index}|{token}".encode()
        value = -hashlib.blake2b(key, digest_size=1).digest()[0] / 256
        others = tuple((token + step, value - step) for step in range(params.top_logprobs))
        found.append(TokenLogprob(token, value, others))
    return tuple(found)
