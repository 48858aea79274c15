"""Branches: the handle for callers, and the engine's side of it.

A handle only posts operations and returns futures. `BranchState` belongs to the engine's thread:
fixed tokens, the run of text since the last generation, a lease, and the queue of operations.
Text is tokenised as one run when its tokens are first needed, so `extend(a); extend(b)` equals
`extend(a + b)`, across forks as well. Generated tokens are never tokenised again.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from radixlang.errors import ParameterError, StateClosedError
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
from radixlang.reply import AnyFuture, Reply
from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.adapters.variants import (
    PLAIN,
    PLAIN_SPANS,
    ModelVariant,
    VariantSpans,
    last_occurrence,
)
from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.radix_tree import Namespace
from radixlang.runtime.scheduling.sequence import TokenIds
from radixlang.sampling_params import SamplingParams

if TYPE_CHECKING:
    from radixlang.runtime.constraints.compiled import CompiledConstraint

T = TypeVar("T")
NO_TOKENS: TokenIds = np.empty(0, np.int32)
Piece = str | tuple[int, ...]
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Extend:
    """Append text, Markup or token ids."""

    content: Piece


@dataclass(slots=True, eq=False)
class Pair:
    """Two branches, of whose logits one generation is made on the first.

    It begins when both have come to it in their queues. `error` is that of the one that failed
    before, or of the beginning itself; the other fails with it when it comes to the generation.
    """

    first: BranchState
    second: BranchState
    how: Contrast
    error: BaseException | None = None

    def other(self, state: BranchState) -> BranchState:
        """The branch that is not this one."""
        return self.second if state is self.first else self.first


@dataclass(frozen=True, slots=True)
class Generate:
    """Run a generation, of a `pair` if one is given."""

    params: SamplingParams
    constraint: CompiledConstraint | None
    generation: Generation
    deadline_s: float | None
    pair: Pair | None = None


@dataclass(frozen=True, slots=True)
class TakePart:
    """Take part in a generation of the first branch of a pair."""

    pair: Pair


@dataclass(frozen=True, slots=True)
class Score:
    """Score options."""

    options: tuple[str, ...] | tuple[tuple[int, ...], ...]
    future: Future[list[OptionScore]]
    deadline_s: float | None
    num_top: int = 0


@dataclass(frozen=True, slots=True)
class Peek:
    """Read the distribution of the next token."""

    among: tuple[str | int, ...] | None
    top: int | None
    future: Future[NextToken]
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class UseAdapter:
    """Compute what follows with a variant of the model, None for the model itself."""

    variant: ModelVariant | None


@dataclass(frozen=True, slots=True)
class ForkInto:
    """Create children."""

    children: tuple[BranchState, ...]


@dataclass(frozen=True, slots=True)
class Expect:
    """Note when the branch's tokens are read next: in so many requests, or never."""

    next_in: int | None


@dataclass(frozen=True, slots=True)
class Keep:
    """Write what is cached of the branch to the disk tier, if there is one."""


@dataclass(frozen=True, slots=True)
class ReadTokens:
    """Read the tokens so far."""

    future: Future[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Release:
    """Release everything."""


Operation = (
    Extend | Generate | TakePart | Score | Peek | UseAdapter | ForkInto | Expect | Keep | ReadTokens
    | Release
)  # fmt: skip


@dataclass(slots=True)
class BranchFamily:
    """A branch and all its forks: the tokens that were cached when their first request began."""

    num_found: int | None = None

    def found(self, num_tokens: int) -> None:
        """Note that a request of the family found so many tokens in the cache."""
        known = self.num_found
        self.num_found = num_tokens if known is None else min(known, num_tokens)


class BranchState:
    """The engine's side of a branch; touched by the engine's thread only.

    `fixed` are tokens that do not change any more, `run` the pieces since then. `error` is the
    first error; every later future fails with it. A branch that is not `born` waits for its fork
    to run. `next_use` is the next use of its path, if the program has given a hint.

    `variant` computes what follows; `variants` are those of the fixed tokens, and `run_variant` is
    that of the run. `invocation` are the tokens that activate the adapter of `variant`, if any, and
    `adapters` all that its tokens were computed with, which stay loaded as long as it lives.
    """

    __slots__ = (
        "adapters",
        "error",
        "family",
        "fixed",
        "invocation",
        "is_born",
        "job",
        "last_use",
        "lease",
        "name",
        "namespace",
        "next_use",
        "operations",
        "run",
        "run_variant",
        "variant",
        "variants",
    )  # fmt: skip

    def __init__(self, namespace: Namespace, name: str, *, is_born: bool) -> None:
        self.namespace = namespace
        self.name = name
        self.is_born = is_born
        self.fixed = NO_TOKENS
        self.run: tuple[Piece, ...] = ()
        self.variant = self.run_variant = PLAIN
        self.variants = PLAIN_SPANS
        self.invocation: tuple[int, ...] = ()
        self.adapters: frozenset[LoraAdapter] = frozenset()
        self.lease: Lease | None = None
        self.operations: deque[Operation] = deque()
        self.job: Any | None = None  # a Job, whose module imports this one
        self.error: BaseException | None = None
        self.last_use = 0
        self.next_use: float | None = None
        self.family = BranchFamily()

    def run_ids(self, encode_run: Callable[..., list[int]], extra: str | None = None) -> list[int]:
        """Token ids of the run and of `extra` text after it, tokenised as one.

        Token ids among the pieces cut the run in two.
        """
        ids: list[int] = []
        texts: list[str] = []
        at_start = not len(self.fixed)
        for piece in self.run if extra is None else (*self.run, extra):
            if isinstance(piece, str):
                texts.append(piece)
                continue
            if texts:
                ids += encode_run(texts, at_start=at_start)
            ids += piece
            texts, at_start = [], False
        if texts or at_start:
            ids += encode_run(texts, at_start=at_start)
        return ids

    def prompt(self, encode_run: Callable[..., list[int]]) -> TokenIds:
        """All tokens, the run tokenised."""
        ids = self.run_ids(encode_run)
        return np.concatenate((self.fixed, np.array(ids, np.int32))) if ids else self.fixed

    def extend(self, piece: Piece, encode_run: Callable[..., list[int]]) -> None:
        """Append to the run; where the variant has changed, another run begins."""
        if self.run and self.run_variant != self.variant:
            self.fixed, self.variants, self.run = (
                self.prompt(encode_run), self._prompt_variants(), ()
            )  # fmt: skip
        if not self.run:
            self.run_variant = self.variant
        self.run = (*self.run, piece)

    def variants_from(self, prompt: TokenIds) -> VariantSpans:
        """What computes a prompt, of this branch's tokens or their beginning, and what follows.

        The last token is computed with the variant in use, since its logits choose the next one.
        An activated adapter begins with the last occurrence of its invocation tokens instead.

        Raises:
            ParameterError: the prompt has no invocation tokens.
        """
        variants, begin = self._prompt_variants(), len(prompt) - 1
        if self.invocation:
            found = last_occurrence(prompt, self.invocation)
            if found is None:
                raise ParameterError(
                    "this adapter acts from its invocation tokens on, and the prompt has none of "
                    f"{list(self.invocation)}; append the text that it was trained to begin with"
                )
            variants, begin = variants.without(self.variant), found
        return variants.since(begin, self.variant)

    def _prompt_variants(self) -> VariantSpans:
        """What computes the fixed tokens and the run."""
        if not self.run:
            return self.variants
        return self.variants.since(len(self.fixed), self.run_variant)

    def drop_lease(self) -> None:
        """Release the lease, if there is one."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()


class Cancellable(Reply[T]):
    """A future whose `cancel` stops the engine's work on it, as for a Generation."""

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        super().__init__()
        self._on_cancel = on_cancel

    def cancel(self) -> bool:
        """Ask the engine to stop; the future then raises our CancelledError."""
        if self.done():
            return False
        self._on_cancel()
        return True


class EngineBranch:
    """A branch of a Runtime; implements `radixlang.protocol.Branch`.

    A handle that is garbage-collected releases its branch.
    """

    __slots__ = ("__weakref__", "_is_released", "_runtime", "_state")

    def __init__(self, runtime: Any, state: BranchState) -> None:
        self._runtime = runtime
        self._state = state
        self._is_released = False

    def extend(self, content: str | Sequence[int]) -> None:
        """Queue text, Markup or token ids. Raises ParameterError for anything else."""
        self._post(Extend(_piece(content, self._runtime.num_token_ids)))

    def generate(
        self,
        params: SamplingParams,
        constraint: CompiledConstraint | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Generation:
        """Queue a generation; after `timeout_s` seconds it fails with a DeadlineError."""
        if not isinstance(params, SamplingParams):
            raise ParameterError(f"params must be SamplingParams, got {type(params).__name__}")
        core, state = self._runtime.core, self._state
        generation = Generation(
            lambda: core.post_cancel_job(state, generation),
            lambda: core.post_stop(state, generation),
        )
        self._post(Generate(params, constraint, generation, _deadline(timeout_s)))
        return generation

    def contrast(
        self,
        other: Branch,
        params: SamplingParams,
        how: Contrast,
        constraint: CompiledConstraint | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Generation:
        """Queue one generation from the logits of this branch and another, for both.

        Raises:
            ParameterError: `other` is this branch, or one of another runtime.
        """
        if not isinstance(params, SamplingParams):
            raise ParameterError(f"params must be SamplingParams, got {type(params).__name__}")
        core, state = self._runtime.core, self._state
        if not isinstance(other, EngineBranch) or other._runtime.core is not core:
            raise ParameterError("a contrast needs two branches of one runtime")
        if other._state is state:
            raise ParameterError("a contrast needs two branches; fork this one for the other")
        generation = Generation(
            lambda: core.post_cancel_job(state, generation),
            lambda: core.post_stop(state, generation),
        )
        pair = Pair(state, other._state, how)
        self._post(Generate(params, constraint, generation, _deadline(timeout_s), pair))
        return generation

    def score(
        self,
        options: Sequence[Option],
        *,
        top_logprobs: int = 0,
        timeout_s: float | None = None,
    ) -> Reply[list[OptionScore]]:
        """Queue the scoring of options, text or token ids, after the prompt so far."""
        check_num_top(top_logprobs)
        given = checked_options(options)
        for option in given:
            if not isinstance(option, str):
                _check_ids(option, self._runtime.num_token_ids)
        core, state = self._runtime.core, self._state
        future: Cancellable[list[OptionScore]] = Cancellable(
            lambda: core.post_cancel_job(state, future)
        )
        self._post(Score(given, future, _deadline(timeout_s), top_logprobs))
        return future

    def next_token(
        self,
        among: Sequence[str | int] | None = None,
        top: int | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Reply[NextToken]:
        """Queue a reading of the next token's distribution; the branch itself is unchanged."""
        tokens, most = check_next_token(among, top)
        core, state = self._runtime.core, self._state
        future: Cancellable[NextToken] = Cancellable(lambda: core.post_cancel_job(state, future))
        self._post(Peek(tokens, most, future, _deadline(timeout_s)))
        return future

    def use_adapter(self, use: AdapterUse | None) -> None:
        """Queue a change of adapter; what follows is computed with it.

        Raises:
            ParameterError: no adapter of this name is loaded, or it has no such layer.
        """
        self._post(UseAdapter(self._runtime.adapters.variant(use)))

    def fork(self, n: int) -> list[EngineBranch]:
        """n branches that start where this one is once its queued operations have run."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ParameterError(f"fork needs a number of branches of at least 0, got {n!r}")
        states = tuple(
            BranchState(self._state.namespace, next_name(), is_born=False) for _ in range(n)
        )
        self._post(ForkInto(states))
        return [EngineBranch(self._runtime, state) for state in states]

    def tokens(self) -> Reply[tuple[int, ...]]:
        """Queue a reading of the branch's token ids, pending text tokenised."""
        future = Reply[tuple[int, ...]]()
        self._post(ReadTokens(future))
        return future

    def expect(self, next_in: int | None) -> None:
        """Queue a hint for eviction: the request that reads the branch's tokens next."""
        self._post(Expect(check_next_in(next_in)))

    def keep(self) -> None:
        """Queue the writing of what is cached of the branch to the disk tier, if there is one."""
        self._post(Keep())

    def cancel(self) -> None:
        """Fail queued and running operations with a CancelledError, then release."""
        self._is_released = True
        self._runtime.core.post_cancel_branch(self._state)

    def release(self) -> None:
        """Free the memory that only this branch holds, once its queued operations have run."""
        if not self._is_released:
            self._is_released = True
            self._runtime.core.post(self._state, Release())

    def _post(self, operation: Operation) -> None:
        self._runtime.core.post(self._state, operation)

    def __del__(self) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"EngineBranch({self._state.name})"


def next_name() -> str:
    """A label for a new branch."""
    return f"branch {next(_numbers)}"


def futures_of(operation: Operation) -> list[AnyFuture]:
    """The futures of an operation."""
    match operation:
        case Generate():
            return [operation.generation]
        case Score() | Peek() | ReadTokens():
            return [operation.future]
    return []


def pair_of(operation: Operation) -> Pair | None:
    """The pair of an operation of two branches."""
    return operation.pair if isinstance(operation, (Generate, TakePart)) else None


def released_error(state: BranchState) -> StateClosedError:
    """The error of an operation posted after release."""
    return StateClosedError(f"{state.name} was released; fork it before, or start a new branch")


def _deadline(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    if not timeout_s > 0:
        raise ParameterError(f"timeout_s must be above 0, got {timeout_s!r}")
    return time.monotonic() + timeout_s


def _piece(content: object, num_token_ids: int) -> Piece:
    if isinstance(content, str):
        return content
    try:
        ids = np.asarray(content)
    except (TypeError, ValueError):
        ids = np.empty(0, object)
    if ids.size == 0 and not isinstance(content, (str, bytes)) and _is_empty(content):
        return ()
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ParameterError(f"a branch is extended by text or token ids, got {content!r:.80}")
    token_ids = tuple(ids.tolist())
    _check_ids(token_ids, num_token_ids)
    return token_ids


def _check_ids(token_ids: tuple[int, ...], num_token_ids: int) -> None:
    if not token_ids:
        return
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0 or highest >= num_token_ids:
        wrong = lowest if lowest < 0 else highest
        raise ParameterError(
            f"token id {wrong} is not in this model's vocabulary of {num_token_ids}"
        )


def _is_empty(content: object) -> bool:
    return isinstance(content, Sized) and len(content) == 0
