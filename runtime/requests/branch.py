"""The handle of a branch: it posts operations to the engine's thread, and returns futures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from radixlang.errors import ParameterError
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
from radixlang.reply import Reply
from radixlang.runtime.requests.branch_state import (
    BranchState,
    Expect,
    Extend,
    ForkInto,
    Generate,
    Keep,
    Operation,
    Pair,
    Peek,
    Piece,
    ReadTokens,
    Release,
    Score,
    UseAdapter,
    next_name,
)
from radixlang.runtime.requests.inbox import Cancel, Inbox, Post, Stop
from radixlang.sampling_params import SamplingParams

if TYPE_CHECKING:
    from radixlang.runtime.constraints.compiled import CompiledConstraint

T = TypeVar("T")


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

    __slots__ = ("__weakref__", "_inbox", "_is_released", "_runtime", "_state")

    def __init__(self, runtime: Any, state: BranchState) -> None:
        self._runtime = runtime
        self._inbox: Inbox = runtime.core.inbox
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
        inbox, state = self._inbox, self._state
        generation = Generation(
            lambda: inbox.put(Cancel(state, generation)),
            lambda: inbox.put(Stop(state, generation)),
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
        inbox, state = self._inbox, self._state
        if not isinstance(other, EngineBranch) or other._inbox is not inbox:
            raise ParameterError("a contrast needs two branches of one runtime")
        if other._state is state:
            raise ParameterError("a contrast needs two branches; fork this one for the other")
        generation = Generation(
            lambda: inbox.put(Cancel(state, generation)),
            lambda: inbox.put(Stop(state, generation)),
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
        inbox, state = self._inbox, self._state
        future: Cancellable[list[OptionScore]] = Cancellable(
            lambda: inbox.put(Cancel(state, future))
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
        inbox, state = self._inbox, self._state
        future: Cancellable[NextToken] = Cancellable(lambda: inbox.put(Cancel(state, future)))
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
        self._inbox.put(Cancel(self._state))

    def release(self) -> None:
        """Free the memory that only this branch holds, once its queued operations have run."""
        if not self._is_released:
            self._is_released = True
            self._post(Release())

    @property
    def run(self) -> tuple[Piece, ...]:
        """The pieces after the tokens that do not change any more. Read it only while nothing is
        queued or running."""
        return self._state.run

    @property
    def has_failed(self) -> bool:
        """Whether an operation has failed, and with it all that follow."""
        return self._state.error is not None

    def _post(self, operation: Operation) -> None:
        self._inbox.put(Post(self._state, operation))

    def __del__(self) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"EngineBranch({self._state.name})"


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
