"""A sequence: tokens on their way through the model, and the memory of their keys and values.

Positions 0 to `num_computed` have keys and values. Those up to the end of the leased node are in
the tree; the rest is the private tail, which no other sequence sees until it is committed. Tokens
from `num_computed` on are pending: the next steps compute them. A draft may follow them in one
step: tokens that may be rejected, whose slots are then freed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from radixlang.runtime.adapters.variants import PLAIN_SPANS, VariantSpans
from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.node import Keys
from radixlang.runtime.cache.pages.page_pool import NO_SLOTS, Slots
from radixlang.runtime.cache.radix_tree import Namespace, RadixNode
from radixlang.runtime.speculative.drafts import NO_DRAFT

TokenIds = NDArray[np.int32]


@dataclass(slots=True)
class PageCount:
    """Pages of the tokens of a request whose attention is not exact: see `protocol.Usage`."""

    num_pages: int = 0
    num_read: int = 0
    omitted_mass: float = 0.0


class Work(Protocol):
    """The request of a sequence, as far as scheduling needs it: see `requests.request.Job`."""

    samples: bool
    num_cached: int
    num_computed: int
    pages: PageCount

    @property
    def num_to_write(self) -> int:
        """Most tokens that may still be generated and then read by a later one."""
        ...

    def draft(self) -> tuple[TokenIds, float]:
        """Draft tokens after the pending one, and the chance that one is accepted."""
        ...


class TokenSequence:
    """Tokens and memory of one running or waiting request.

    Args:
        job: the request that uses the logits.
        namespace: typed part of the cache key.
        tokens: int32 [n] the prompt, n ≥ 1.
        first_logit: first position whose logits are needed. The cache is not used from there on,
            because keys and values give no logits.
        counted: positions whose tokens are already counted in the statistics.
        holder: label for the leak scanner.
        variants: what computes each position; generated tokens go on with the last.

    `partner` is the other sequence of a generation from two branches' logits. The one whose last
    row comes first is held until the other's is there: `held_at` is its number of tokens then.
    """

    __slots__ = ("_buffer", "arrival", "counted", "draft", "first_logit", "followers", "held_at",
                 "holder", "is_running", "job", "leader_key", "lease", "namespace",
                 "num_committed", "num_computed", "num_prompt", "num_tokens", "partner", "reached",
                 "tail", "variants")  # fmt: skip

    def __init__(
        self,
        job: Work,
        namespace: Namespace,
        tokens: TokenIds,
        *,
        first_logit: int,
        holder: str,
        counted: int = 0,
        variants: VariantSpans = PLAIN_SPANS,
    ) -> None:
        self.job = job
        self.namespace = namespace
        self.variants = variants
        self._buffer = tokens
        self.num_tokens = self.num_prompt = len(tokens)
        self.first_logit = first_logit
        self.counted = self.reached = counted
        self.draft: TokenIds = NO_DRAFT
        self.holder = holder
        self.num_computed = 0
        self.num_committed = 0  # tokens that it reads from the tree
        self.lease: Lease | None = None
        self.tail: Slots = NO_SLOTS
        self.arrival = 0
        self.is_running = False
        self.leader_key: tuple[RadixNode, int] | None = None
        self.followers: dict[TokenSequence, int] = {}  # and the length of prefix each waits for
        self.partner: TokenSequence | None = None
        self.held_at = 0

    @property
    def tokens(self) -> TokenIds:
        """All tokens, prompt first; a view."""
        return self._buffer[: self.num_tokens]

    @property
    def keys(self) -> Keys:
        """Key elements of all tokens, int64."""
        return self.variants.keys(self.tokens)

    def keys_of(self, start: int, stop: int) -> Keys:
        """Key elements of positions start to stop."""
        return self.variants.keys(self._buffer[start:stop], start)

    @property
    def num_pending(self) -> int:
        """Tokens without keys and values yet."""
        return self.num_tokens - self.num_computed

    @property
    def is_held(self) -> bool:
        """Whether its last row is computed and waits for the partner's."""
        return self.held_at == self.num_tokens

    @property
    def is_awaited(self) -> bool:
        """Whether its partner runs, and cannot go on without it."""
        return self.partner is not None and self.partner.is_running

    def inputs(self, num_new: int) -> TokenIds:
        """The model's input of a step: the next pending tokens, and the draft."""
        pending = self._buffer[self.num_computed : self.num_computed + num_new]
        return np.concatenate((pending, self.draft)) if len(self.draft) else pending

    @property
    def is_prefilling(self) -> bool:
        """True while tokens of the prompt are pending."""
        return self.num_computed < self.num_prompt

    @property
    def node(self) -> RadixNode:
        """The node at which the committed prefix ends; only while it is leased."""
        assert self.lease is not None
        return self.lease.node

    def hold(self, lease: Lease | None) -> None:
        """Read the tree up to the end of a lease, or (None) not at all."""
        self.lease = lease
        self.num_committed = 0 if lease is None else lease.node.end

    def move(self, node: RadixNode) -> None:
        """Lease another node instead."""
        assert self.lease is not None
        self.lease.move(node)
        self.num_committed = node.end

    @property
    def num_written(self) -> int:
        """Slots of the private tail that hold keys and values."""
        return self.num_computed - self.num_committed

    @property
    def num_unwritten(self) -> int:
        """Slots reserved ahead."""
        return len(self.tail) + self.num_committed - self.num_computed

    def withdraw(self) -> None:
        """Remove the last token of the prompt, which has no keys and values yet."""
        self._buffer = self._buffer.copy()
        self.num_prompt -= 1
        self.num_tokens = self.num_prompt
        self.counted = min(self.counted, self.num_prompt)

    def append(self, token_id: int) -> None:
        """Add a pending token; growing makes the buffer private to this sequence."""
        if self.num_tokens == len(self._buffer):
            grown = np.empty(max(64, 2 * self.num_tokens), np.int32)
            grown[: self.num_tokens] = self.tokens
            self._buffer = grown
        self._buffer[self.num_tokens] = token_id
        self.num_tokens += 1
