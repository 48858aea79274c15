"""Scores and texts of many requests at once, each shared token computed once.

Requests are grouped by their contexts: a context and all its continuations are one branch and one
scoring. Contexts are posted in the order of their tokens, so that those which begin alike (a
few-shot prompt, a system text) are neighbours, and the radix tree computes the beginning once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from radixlang.errors import ParameterError
from radixlang.protocol import Backend, Branch, Completion, OptionScore
from radixlang.sampling_params import SamplingParams

MAX_IN_FLIGHT = 256  # branches posted and not yet answered
log = logging.getLogger("radixlang.evaluation")
T = TypeVar("T")
TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A continuation whose log-probability after a context is asked for."""

    context: TokenIds
    continuation: TokenIds


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A context whose continuation is to be generated."""

    context: TokenIds
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Posted(Generic[T]):
    """A request that the backend works on, and what its answer is for."""

    future: Future[T]
    indices: list[int]


def score_all(
    backend: Backend,
    requests: Sequence[ScoreRequest],
    done: Callable[[int, OptionScore], None],
) -> None:
    """Call done(index, score) for every request, in any order.

    Raises:
        ParameterError: a request has no context; nothing predicts its first token.
    """
    groups: dict[TokenIds, list[int]] = {}
    for index, request in enumerate(requests):
        if not request.context:
            raise ParameterError(f"request {index} has a context of no tokens")
        groups.setdefault(request.context, []).append(index)

    def post(branch: Branch, indices: list[int]) -> Posted[list[OptionScore]]:
        options = [requests[index].continuation for index in indices]
        return Posted(branch.score(options), indices)

    for indices, scores in _answers(backend, sorted(groups.items()), post):
        for index, score in zip(indices, scores, strict=True):
            done(index, score)


def generate_all(
    backend: Backend,
    requests: Sequence[TextRequest],
    done: Callable[[int, Completion], None],
) -> None:
    """Call done(index, completion) for every request, in any order."""
    order = sorted(range(len(requests)), key=lambda index: requests[index].context)

    def post(branch: Branch, indices: list[int]) -> Posted[Completion]:
        return Posted(branch.generate(requests[indices[0]].params), indices)

    contexts = [(requests[index].context, [index]) for index in order]
    for indices, completion in _answers(backend, contexts, post):
        done(indices[0], completion)


def _answers(
    backend: Backend,
    contexts: Sequence[tuple[TokenIds, list[int]]],
    post: Callable[[Branch, list[int]], Posted[T]],
) -> Iterator[tuple[list[int], T]]:
    """Post requests, some ahead of the answers; each branch is released once it has answered."""
    posted: deque[Posted[T]] = deque()
    try:
        for context, indices in contexts:
            branch = backend.new_branch()
            branch.extend(context)
            posted.append(post(branch, indices))
            branch.release()
            if len(posted) >= MAX_IN_FLIGHT:
                yield _next(posted)
        while posted:
            yield _next(posted)
    finally:
        for each in posted:  # an error or an interrupt: nobody waits for the rest
            each.future.cancel()


def _next(posted: deque[Posted[T]]) -> tuple[list[int], T]:
    first = posted.popleft()
    return first.indices, first.future.result()


def truncated(requests: Sequence[ScoreRequest], max_length: int) -> list[ScoreRequest]:
    """The requests, contexts too long for the model cut on the left, with a warning.

    The last token of a continuation is predicted and never read, so context and continuation may
    have max_length + 1 tokens together.

    Raises:
        ParameterError: a continuation alone is too long.
    """
    kept, num_cut = [], []
    for request in requests:
        context, num_target = request.context, len(request.continuation)
        if num_target > max_length:
            raise ParameterError(
                f"a continuation has {num_target} tokens and the model reads {max_length} at most; "
                "score it by loglikelihood_rolling, or load the model with a larger context_length"
            )
        room = max_length + 1 - num_target
        num_cut.append(max(0, len(context) - room))
        kept.append(ScoreRequest(context[-room:], request.continuation))
    warn_of_cuts(num_cut, max_length)
    return kept


def warn_of_cuts(num_cut: Sequence[int], max_length: int) -> None:
    """Log how many contexts were cut on the left, if any was, and the most tokens cut."""
    num_requests = sum(1 for each in num_cut if each)
    if num_requests:
        log.warning(
            "%d of %d contexts were too long for the model's %d tokens and were cut on the left, "
            "by %d tokens at most",
            num_requests, len(num_cut), max_length, max(num_cut),
        )  # fmt: skip
