"""The 8-bit tier: nodes that were idle for a while, or would be evicted, are quantised.

A quantised node keeps its place in the tree; its slots are those of the 8-bit planes, which
attention reads directly, and its exact slots are freed. Requests that ask for exact results do
not match it. Only nodes without a lease are quantised, so no branch's slots change.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.pages.page_pool import PoolFull
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree


class ColdTier:
    """Moves nodes of a tree from exact to 8-bit slots.

    Args:
        tree: has a `cold_pool` of as many slots as the cache's `num_cold_slots`.
        cache: tensors of both tiers.
        idle_s: seconds without a use after which `quantize_idle` takes a node.
        clock: the time in seconds; for tests.
    """

    def __init__(
        self,
        tree: RadixTree,
        cache: KVCache,
        *,
        idle_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree = tree
        self._cache = cache
        self._clock = clock
        self.idle_s = idle_s
        self._past: deque[tuple[float, int]] = deque()  # (seconds, the tree's use count then)
        self.num_quantized_tokens = 0

    def quantize(self, node: RadixNode) -> bool:
        """Store an unleased exact node in 8 bits; False if there is no room for it."""
        tree = self._tree
        if node.num_leases or node.quantized or tree.cold_pool is None or not node.length:
            return False
        try:
            target = tree.cold_pool.alloc(node.length, holder="cold node")
        except PoolFull:
            return False
        self._cache.quantize(node.slots, target)
        self.num_quantized_tokens += node.length
        tree.store(node, target, quantized=True)
        return True

    def quantize_idle(self) -> int:
        """Quantise nodes unused for idle_s seconds, oldest first; returns the number of tokens.

        Call it regularly: the tree only counts uses, and this call records when they were.
        """
        now = self._clock()
        self._past.append((now, self._tree.num_uses))
        while len(self._past) > 1 and self._past[1][0] <= now - self.idle_s:
            self._past.popleft()
        since, last_use = self._past[0]
        if since > now - self.idle_s:
            return 0
        before = self.num_quantized_tokens
        for node in self._idle_nodes():
            if node.last_use > last_use or not self._make_cold(node):
                break
        return self.num_quantized_tokens - before

    def make_room(self, num_pages: int) -> int:
        """Free exact pages by quantising, in the order of eviction; returns pages freed.

        It is tried first under memory pressure; `RadixTree.evict` comes next.
        """
        tree, pool = self._tree, self._tree.pool
        before = pool.num_free_pages
        while pool.num_free_pages - before < num_pages:
            leaf = tree.policy.pop()
            if leaf is None or not self._make_cold(leaf):
                if leaf is not None:
                    tree.policy.add(leaf)
                break
        for node in self._idle_nodes() if len(tree.policy.leaves) == 0 else ():
            if pool.num_free_pages - before >= num_pages or not self._make_cold(node):
                break
        return pool.num_free_pages - before

    def _make_cold(self, node: RadixNode) -> bool:
        """Quantise a node, evicting colder 8-bit leaves if needed."""
        cold_pool = self._tree.cold_pool
        if cold_pool is None:
            return False
        missing = cold_pool.num_pages_for(node.length) - cold_pool.num_free_pages
        if missing > 0 and node.length <= cold_pool.num_slots:
            self._tree.evict_cold(missing)
        return self.quantize(node)

    def _idle_nodes(self) -> list[RadixNode]:
        """Unleased exact nodes, least recently used first and children before parents."""
        nodes = [n for n in self._tree.nodes() if not n.num_leases and not n.quantized]
        return sorted(nodes, key=lambda node: (node.last_use, -node.start))
