"""A branch as the engine's thread has it, and the operations that wait on it.

Fixed tokens, the run of text since the last generation, a lease, and the queue of operations.
Text is tokenised as one run when its tokens are first needed, so `extend(a); extend(b)` equals
`extend(a + b)`, across forks as well. Generated tokens are never tokenised again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from radixlang.errors import ParameterError, StateClosedError
from radixlang.protocol import Contrast, Generation, NextToken, OptionScore
from radixlang.reply import AnyFuture
from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.adapters.variants import (
    PLAIN,
    PLAIN_SPANS,
    ModelVariant,
    VariantSpans,
    VariantTable,
    last_occurrence,
)
from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.radix_tree import Namespace
from radixlang.runtime.scheduling.sequence import TokenIds
from radixlang.sampling_params import SamplingParams

if TYPE_CHECKING:
    from radixlang.runtime.constraints.compiled import CompiledConstraint

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

    def variants_from(self, prompt: TokenIds, table: VariantTable) -> VariantSpans:
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
            variants, begin = table.without_adapter(variants, self.variant), found
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
