"""Scoring of options: a trie under one prompt, every distinct edge computed once.

A token's log-probability comes from the logits at the token before it, so the last token of an
option is never computed, and an option of one token costs nothing beyond the prompt. The trie is
cut into chains that do not branch; each is one sequence, run after the chain above it. That chain
need not stay cached: a sequence matches the longest cached prefix and computes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from radixlang.protocol import OptionScore
from radixlang.runtime.adapters.variants import PLAIN_SPANS, VariantSpans
from radixlang.runtime.requests.branch_state import BranchState
from radixlang.runtime.requests.request import Job
from radixlang.runtime.sampling.sampler import row_tops, target_logprobs
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.sequence import TokenIds, TokenSequence


@dataclass(slots=True, eq=False)
class TrieNode:
    """A token of one or more options; the root stands for the last token of the prompt. `top` are
    the likeliest tokens after it, as (id, log-probability)."""

    token_id: int
    children: dict[int, TrieNode] = field(default_factory=dict)
    logprob: float = 0.0
    is_greedy: bool = False
    top: tuple[tuple[int, float], ...] = ()

    def inner(self) -> list[TrieNode]:
        """Children that other tokens follow: only those have to be computed."""
        return [child for child in self.children.values() if child.children]


@dataclass(frozen=True, slots=True)
class _Chain:
    """Nodes below each other without a branching, and the tokens above the first of them."""

    above: tuple[int, ...]
    nodes: tuple[TrieNode, ...]


class ScoreJob(Job):
    """A running scoring.

    Args:
        base: int32 [n ≥ 1] prompt tokens that all options share.
        options: text and tokens after `base` of each option.
        num_top: likeliest tokens to tell at each position, of the first `vocab_size` ids.
        variants: what computes them.
    """

    def __init__(
        self,
        branch: BranchState,
        future: Future[list[OptionScore]],
        base: TokenIds,
        options: Sequence[tuple[str, tuple[int, ...]]],
        variants: VariantSpans = PLAIN_SPANS,
        deadline_s: float | None = None,
        *,
        num_top: int = 0,
        vocab_size: int = 0,
    ) -> None:
        super().__init__(branch, future, deadline_s)
        self._num_top = num_top
        self._vocab_size = vocab_size
        self._base = base
        self._options = options
        self._variants = variants
        self._root = TrieNode(int(base[-1]))
        self._chains: dict[TokenSequence, _Chain] = {}
        for _, token_ids in options:
            node = self._root
            for token_id in token_ids:
                node = node.children.setdefault(token_id, TrieNode(token_id))

    def begin(self) -> list[TokenSequence]:
        """The first sequence: the prompt, and the common beginning of the options."""
        return [self._start((), self._root)] if self._root.children else []

    def restart(self) -> None:
        """Drop all scores and begin again."""
        self._chains.clear()
        self.sequences.clear()
        self.begin()

    def record(self, sequence: TokenSequence, first: int, logits: Tensor) -> None:
        """Score the children of the nodes whose logits these are."""
        chain = self._chains[sequence]
        rows: list[int] = []
        children: list[TrieNode] = []
        for row in range(len(logits)):
            node = chain.nodes[first + row - self._position(chain)]
            below = node.children.values()
            if self._num_top and below:
                node.top = row_tops(logits[row], self._num_top, self._vocab_size)
            rows += [row] * len(below)
            children += below
        index = torch.tensor(rows, device=logits.device)
        targets = torch.tensor([child.token_id for child in children], device=logits.device)
        values, is_greedy = target_logprobs(logits, index, targets)
        for child, value, greedy in zip(children, values.tolist(), is_greedy.tolist(), strict=True):
            child.logprob, child.is_greedy = value, greedy

    def computed(self, sequence: TokenSequence) -> list[TokenSequence]:
        """The chains below a finished one."""
        chain = self._chains.pop(sequence)
        self.sequences.pop(sequence, None)
        above = (*chain.above, *(node.token_id for node in chain.nodes))
        above = above[1:] if chain.nodes[0] is self._root else above
        return [self._start(above, child) for child in chain.nodes[-1].inner()]

    @property
    def is_ready(self) -> bool:
        """True if no chain is left."""
        return not self.sequences

    def finish(self, memory: Memory, later: Callable[[Callable[[], None]], None]) -> None:
        """Resolve with scores in the order of the options; the branch keeps the prompt leased."""
        branch, tree = self.branch, memory.tree
        match = tree.match(branch.namespace, self._variants.keys(self._base))
        branch.drop_lease()
        branch.lease = tree.lease(match.node, branch.name)
        scores = [self._score(text, token_ids) for text, token_ids in self._options]
        later(lambda: None if self.future.done() else self.future.set_result(scores))

    def _start(self, above: tuple[int, ...], node: TrieNode) -> TokenSequence:
        nodes = [node]
        while len(inner := nodes[-1].inner()) == 1:
            nodes.append(inner[0])
        chain = _Chain(above, tuple(nodes))
        path = [*above, *(each.token_id for each in nodes if each is not self._root)]
        tokens = np.concatenate((self._base, np.array(path, np.int32)))
        position = self._position(chain)
        sequence = TokenSequence(
            self,
            self.branch.namespace,
            tokens,
            first_logit=position,
            counted=0 if node is self._root else position,
            holder=self.holder,
            variants=self._variants,
        )
        self._chains[sequence] = chain
        self.sequences[sequence] = None
        return sequence

    def _position(self, chain: _Chain) -> int:
        """Position of the chain's first token in the sequence."""
        is_root = chain.nodes[0] is self._root
        return len(self._base) - 1 if is_root else len(self._base) + len(chain.above)

    def _score(self, text: str, token_ids: tuple[int, ...]) -> OptionScore:
        node, nodes, tops = self._root, [], []
        for token_id in token_ids:
            tops.append(node.top)
            node = node.children[token_id]
            nodes.append(node)
        return OptionScore(
            text,
            token_ids,
            tuple(each.logprob for each in nodes),
            tuple(each.is_greedy for each in nodes),
            tuple(tops) if self._num_top else (),
        )


def num_shared(runs: Sequence[list[int]]) -> int:
    """Number of tokens of the common beginning of all runs."""
    first, last = min(runs), max(runs)
    for place, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return place
    return min(len(first), len(last))
