"""Eviction policies: the order in which evictable leaves of the tree are evicted.

A leaf is evictable while no lease passes through it. Leaves are in a lazy heap: a use makes no
heap operation, it only makes the entry stale, and a stale entry is renewed when it comes up. So a
match costs nothing here and an eviction O(log n), for any number of leaves.
"""

from __future__ import annotations

import heapq
from typing import ClassVar

from radixlang.errors import ParameterError
from radixlang.runtime.cache.node import Entry, RadixNode, Rank

NEVER = float("inf")  # as a next use: there will be none


class LeafHeap:
    """A lazy heap of leaves by a rank that may change while they wait."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._num_added = 0
        self.leaves: set[RadixNode] = set()

    def rank(self, node: RadixNode) -> Rank:
        """Least recently used first."""
        return (0, node.last_use)

    def add(self, node: RadixNode) -> None:
        """Queue the leaf, or renew its entry if its rank has fallen."""
        self.leaves.add(node)
        self._num_added += 1
        node.entry = (self.rank(node), self._num_added, node)
        heapq.heappush(self._entries, node.entry)
        if len(self._entries) > 2 * len(self.leaves) + 64:
            self._entries = self.queued()
            heapq.heapify(self._entries)

    def discard(self, node: RadixNode) -> None:
        """Remove the leaf from the queue, if it is in it."""
        self.leaves.discard(node)
        node.entry = None

    def pop(self) -> RadixNode | None:
        """Remove and return the leaf of least rank."""
        while self._entries:
            entry = heapq.heappop(self._entries)
            node = entry[2]
            if node.entry is not entry:
                continue
            if self.rank(node) > entry[0]:
                self.add(node)
                continue
            self.discard(node)
            return node
        return None

    def queued(self) -> list[Entry]:
        """The live entries, unordered."""
        return [entry for entry in self._entries if entry[2].entry is entry]


class EvictionPolicy(LeafHeap):
    """What the tree tells a policy and asks of it; the order is that of `rank`."""

    name: ClassVar[str]
    counts_hits = False  # whether it is told of hits
    looks_ahead = False  # whether it asks for the next uses of nodes

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def on_hit(self, node: RadixNode) -> None:
        """Note that a match went through the node."""

    def on_forget(self, node: RadixNode, num_tokens: int) -> None:
        """Note that num_tokens of the node were evicted."""


class LruPolicy(EvictionPolicy):
    """Least recently used leaf first."""

    name = "lru"


class LookaheadPolicy(EvictionPolicy):
    """By the programs' own next uses, which makes it Belady's policy if they are exact.

    First nodes that will never be used again, then nodes of which nothing is known, least
    recently used first, then nodes that are needed, the farthest use first.
    """

    name = "lookahead"
    looks_ahead = True

    def rank(self, node: RadixNode) -> Rank:
        """The order of eviction; see the class."""
        if node.next_use is None:
            return (1, node.last_use)
        return (0, node.last_use) if node.next_use == NEVER else (2, -node.next_use)


class SegmentedLruPolicy(EvictionPolicy):
    """Segmented LRU: nodes with a hit outlive nodes without, so a scan evicts nothing hot.

    (Karedla, Love and Wherry 1994.) The protected segment holds at most `protected_share` of the
    capacity; beyond that its least recently used leaves return to the segment without hits.
    """

    name = "slru"
    counts_hits = True
    protected_share = 0.8

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._protected = LeafHeap()
        self.num_protected_tokens = 0

    def add(self, node: RadixNode) -> None:
        """Queue the leaf in its segment."""
        if node.is_hot:
            self.leaves.add(node)
            self._protected.add(node)
        else:
            super().add(node)

    def discard(self, node: RadixNode) -> None:
        """Remove the leaf from both segments."""
        super().discard(node)
        self._protected.leaves.discard(node)

    def on_hit(self, node: RadixNode) -> None:
        """Move a node to the protected segment at its second use."""
        if not node.is_hot and node.parent is not None:
            node.is_hot = True
            self.num_protected_tokens += node.length
            if node in self.leaves:
                self.discard(node)
                self.add(node)

    def on_forget(self, node: RadixNode, num_tokens: int) -> None:
        """Update the size of the protected segment."""
        if node.is_hot:
            self.num_protected_tokens -= num_tokens

    def pop(self) -> RadixNode | None:
        """A leaf without hits if there is one, else the least recently used protected leaf."""
        while self.num_protected_tokens > self.protected_share * self.capacity:
            node = self._protected.pop()
            if node is None:
                break
            self._demote(node)
        node = super().pop() or self._protected.pop()
        if node is not None:
            self.discard(node)
        return node

    def queued(self) -> list[Entry]:
        """The live entries of both segments."""
        return super().queued() + self._protected.queued()

    def _demote(self, node: RadixNode) -> None:
        self.num_protected_tokens -= node.length
        node.is_hot = False
        self.add(node)


POLICIES: dict[str, type[EvictionPolicy]] = {
    policy.name: policy for policy in (LruPolicy, SegmentedLruPolicy, LookaheadPolicy)
}


def make_policy(name: str, capacity: int) -> EvictionPolicy:
    """The policy of that name for a pool of `capacity` tokens."""
    if name not in POLICIES:
        raise ParameterError(f"unknown eviction policy {name!r}; known: {', '.join(POLICIES)}")
    return POLICIES[name](capacity)
