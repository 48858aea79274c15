"""Compaction: hot paths made contiguous, so that attention reads them as one run.

Tokens of a path scatter over the pool as branches grow concurrently and are evicted one by one.
After a number of insertions, or if much of the cache is scattered, the paths most often matched
are moved into free memory, each into one run, with their keys and values. A node that a running
step may read never moves; a leased one may, and changes `RadixTree.layout_version` for its readers.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol

import numpy as np

from radixlang.runtime.cache.pages.page_pool import Slots
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree


class MovesSlots(Protocol):
    """The tensors' interface for compaction (KVCache has it)."""

    def move(self, source: Slots, target: Slots) -> None:
        """Copy keys and values from slot to slot."""


class Compactor:
    """Decides when to compact, and compacts.

    Args:
        tree: the tree whose nodes move.
        cache: the tensors, copied through `move`.
        every_inserts: compact after so many insertions.
        max_fragmentation: or if this share of cached tokens does not follow its predecessor.
        max_tokens: most tokens that a call copies.
    """

    def __init__(
        self,
        tree: RadixTree,
        cache: MovesSlots,
        *,
        every_inserts: int = 4096,
        max_fragmentation: float = 0.25,
        max_tokens: int = 65536,
    ) -> None:
        self._tree = tree
        self._cache = cache
        self.every_inserts = every_inserts
        self.max_fragmentation = max_fragmentation
        self.max_tokens = max_tokens
        self.num_moved_tokens = 0
        self._last_inserts = 0

    def is_due(self) -> bool:
        """True after enough insertions; fragmentation is checked after every 16th part of them."""
        num_new = self._tree.num_inserts - self._last_inserts
        if num_new >= self.every_inserts:
            return True
        checks = max(1, self.every_inserts // 16)
        return num_new >= checks and fragmentation(self._tree) > self.max_fragmentation

    def is_overdue(self) -> bool:
        """True after `every_inserts` since the last compaction; costs one comparison."""
        return self._tree.num_inserts - self._last_inserts >= self.every_inserts

    def compact(self, in_flight: AbstractSet[RadixNode] = frozenset()) -> list[RadixNode]:
        """Make hot paths contiguous, hottest first; returns the nodes whose slots changed.

        Args:
            in_flight: nodes that a running step may read; they stay where they are.
        """
        self._last_inserts = self._tree.num_inserts
        budget = self.max_tokens
        moved: list[RadixNode] = []
        for path in _hot_paths(self._tree):
            nodes = [node for node in path if node not in in_flight and not node.quantized]
            num_tokens = sum(node.length for node in nodes)
            if num_tokens <= budget and self._gather(nodes):
                budget -= num_tokens
                moved += nodes
        return moved

    def _gather(self, nodes: list[RadixNode]) -> bool:
        """Copy nodes into one free run, if there is one and it helps."""
        pool = self._tree.pool
        num_tokens = sum(node.length for node in nodes)
        if not nodes or num_runs(np.concatenate([node.slots for node in nodes])) == 1:
            return False
        if pool.longest_free_run * pool.page_size < num_tokens:
            return False
        target = pool.alloc(num_tokens, holder="compaction")
        self._cache.move(np.concatenate([node.slots for node in nodes]), target)
        self.num_moved_tokens += num_tokens
        at = 0
        for node in nodes:
            self._tree.store(node, target[at : at + node.length], quantized=False)
            at += node.length
        return True


def fragmentation(tree: RadixTree) -> float:
    """Share of cached exact tokens whose slot does not follow that of the token before, 0 to 1."""
    breaks = num_tokens = 0
    for node in tree.nodes():
        if node.quantized:
            continue
        num_tokens += node.length
        breaks += num_runs(node.slots) - 1
        parent = node.parent
        if parent is not None and parent.length and len(parent.children) == 1:
            breaks += int(parent.slots[-1] + 1 != node.slots[0])
    return breaks / num_tokens if num_tokens else 0.0


def num_runs(slots: Slots) -> int:
    """Runs of neighbouring slots: 1 if contiguous, 0 if empty."""
    return int(np.count_nonzero(slots[1:] != slots[:-1] + 1)) + 1 if len(slots) else 0


def _hot_paths(tree: RadixTree) -> list[list[RadixNode]]:
    """The tree cut into paths, each following the most matched child; most matched first."""
    heads = [child for root in tree.roots.values() for child in root.children.values()]
    paths = []
    while heads:
        node = heads.pop()
        path = [node]
        while node.children:
            children = sorted(node.children.values(), key=lambda child: -child.num_hits)
            heads += children[1:]
            node = children[0]
            path.append(node)
        paths.append(path)
    return sorted(paths, key=lambda path: -sum(node.num_hits * node.length for node in path))
