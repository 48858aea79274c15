"""The radix tree of the KV cache: token sequences with common prefixes, each stored once.

Edges are compressed: a node holds a run of tokens and, for each, the slot of its keys and values.
The tree knows slots only as numbers. Matching is by token at every page size: the pool allocates by
pages, the tree compares by tokens (see page_pool.py), so a partly matched page is reused by
reference and siblings always differ in their first token.

Children are found by their first token in a dictionary, so a fan-out of ten thousand costs as much
as a fan-out of two. Nothing is shared between namespaces: each has its own root.

One thread owns a tree; readers on others use snapshots (snapshot.py). Nothing here locks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from radixlang.errors import OwnershipError, ParameterError
from radixlang.runtime.cache.eviction import NEVER, EvictionPolicy, make_policy
from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.node import (
    TOKEN_BYTES,
    Insert,
    Keys,
    Namespace,
    PrefixMatch,
    RadixNode,
    Tokens,
    as_edge,
    first_token,
    num_common_tokens,
    walk,
)
from radixlang.runtime.cache.pages.page_pool import PagePool, Slots
from radixlang.runtime.cache.tree_changes import TreeChanges
from radixlang.runtime.cache.tree_structure import TreeStructure, below

__all__ = ["Insert", "Namespace", "PrefixMatch", "RadixNode", "RadixTree", "Tokens"]


class RadixTree:
    """Matches, inserts and evicts prefixes; owns the slots of what it holds.

    Args:
        pool: allocator of the exact slots.
        policy: "lru", "slru" or "lookahead".
        cold_pool: allocator of the 8-bit slots, if there are any.
    """

    def __init__(
        self, pool: PagePool, *, policy: str = "lru", cold_pool: PagePool | None = None
    ) -> None:
        self.structure = TreeStructure()
        self.pool = pool
        self.cold_pool = cold_pool
        self.policy = make_policy(policy, pool.num_slots)
        cold_slots = cold_pool.num_slots if cold_pool is not None else 0
        self.cold_policy = make_policy(policy, cold_slots)
        self.leases: set[Lease] = set()
        self.retired: set[Namespace] = set()
        self.num_cached_tokens = 0
        self.num_protected_tokens = 0
        self.num_evicted_tokens = 0
        self.before_eviction: Callable[[RadixNode], None] | None = None  # of a disk tier
        self.changes: TreeChanges | None = None  # for a router of several trees
        self.num_inserts = 0
        self._clock = 0
        self._num_hints = 0
        self._hints: list[tuple[float, int, RadixNode]] = []  # a heap of known next uses

    # ---- matching and counting

    def match(
        self, namespace: Namespace | str, tokens: Sequence[int] | Tokens, *, exact: bool = False
    ) -> PrefixMatch:
        """The longest cached prefix, as a node that ends with it; counts as a use.

        Lease the node before the next call of the tree, which may evict it. With `exact`, nodes
        stored in 8 bits count as misses.
        """
        found = walk(self.root(namespace), as_edge(tokens), exact=exact)
        node = self.structure.end_at(found.node, found.child, found.part)
        self._touch(node, is_hit=True)
        return PrefixMatch(node, found.num_tokens + found.part)

    @property
    def num_uses(self) -> int:
        """The tree's clock: matches and insertions so far, the scale of `last_use`."""
        return self._clock

    @property
    def num_evictable_tokens(self) -> int:
        """Cached tokens that no lease passes through."""
        return self.num_cached_tokens - self.num_protected_tokens

    @property
    def num_evictable_pages(self) -> int:
        """Pages that eviction could free now."""
        return self.pool.num_evictable_pages

    # ---- the structure

    @property
    def roots(self) -> dict[Namespace, RadixNode]:
        """The root of every namespace that holds tokens."""
        return self.structure.roots

    @property
    def layout_version(self) -> int:
        """Grows whenever nodes or the slots of a cached token change."""
        return self.structure.layout_version

    def root(self, namespace: Namespace | str) -> RadixNode:
        """The root of a namespace, made at the first call."""
        return self.structure.root(namespace)

    def peek(
        self, namespace: Namespace | str, tokens: Sequence[int] | Tokens, *, exact: bool = False
    ) -> int:
        """Length of the longest cached prefix. Changes nothing."""
        return self.structure.peek(namespace, tokens, exact=exact)

    def nodes(self) -> Iterator[RadixNode]:
        """Every node but the roots, parents before children."""
        return self.structure.nodes()

    def path(self, node: RadixNode) -> list[RadixNode]:
        """Nodes from below the root to the node itself."""
        return self.structure.path(node)

    def slots(self, node: RadixNode) -> Slots:
        """Slots of every token from the root to the end of the node, int32 [node.end]."""
        return self.structure.slots(node)

    def tokens(self, node: RadixNode) -> Keys:
        """Key elements from the root to the end of the node, int64 [node.end]."""
        return self.structure.tokens(node)

    # ---- growing

    def insert(
        self,
        parent: RadixNode,
        tokens: Sequence[int] | Tokens,
        slots: Slots,
        *,
        exact: bool = False,
    ) -> Insert:
        """Store tokens below a node that the caller leases, and take over their slots.

        Slots of tokens that are cached already are released to the pool (at the end of the step
        in flight, if there is one): the caller continues with `slots(insert.node)`.

        Args:
            parent: node that the tokens continue.
            tokens: [n] token ids whose keys and values are computed.
            slots: int32 [n], whose ownership passes to the tree.
            exact: do not accept 8-bit nodes as duplicates; idle ones take over the exact slots.
        """
        self.structure.check_attached(parent)
        edge, slots = as_edge(tokens), np.ascontiguousarray(slots, np.int32)
        if len(edge) != TOKEN_BYTES * len(slots):
            raise ParameterError(f"{len(edge) // TOKEN_BYTES} tokens came with {len(slots)} slots")
        node, at, num_inserted = parent, 0, 0
        duplicates = []
        while at < len(slots):
            found = walk(node, edge, at, exact=exact)
            node = self.structure.end_at(found.node, found.child, found.part)
            stop = found.num_tokens + found.part
            duplicates.append(slots[at:stop])
            at = stop
            if at == len(slots):
                break
            cold = node.children.get(first_token(edge, at))
            if cold is None:
                node = self._append(node, edge[at * TOKEN_BYTES :], slots[at:])
            else:
                part = num_common_tokens(cold.edge, edge, at * TOKEN_BYTES)
                if cold.num_leases:
                    break
                node = self.structure.end_at(node, cold, part)
                self.store(node, slots[at : at + part], quantized=False)
            num_inserted += node.length
            at += node.length
        self._touch(node)
        self.num_inserts += 1
        num_duplicate = sum(map(len, duplicates))
        for run in duplicates:
            self.pool.release(run)
        return Insert(node, num_inserted, num_duplicate)

    # ---- leases

    def lease(self, node: RadixNode, holder: str = "", *, exact: bool = False) -> Lease:
        """Protect the path that ends at the node from eviction, until the lease is released.

        `holder` is its name in the leak scanner; `exact` promises the audit that no 8-bit node is
        on the path.
        """
        return Lease(self, node, holder, exact)

    def pin(self, node: RadixNode) -> None:
        """Add one lease to every node of the path (called by Lease)."""
        self.structure.check_attached(node)
        at: RadixNode | None = node
        while at is not None:
            at.num_leases += 1
            if at.num_leases == 1:
                self._protect(at)
            at = at.parent

    def unpin(self, node: RadixNode) -> None:
        """Remove one lease from every node of the path (called by Lease)."""
        at: RadixNode | None = node
        while at is not None:
            parent = at.parent
            if at.num_leases <= 0:
                raise OwnershipError(f"lease count of {at.length} tokens at {at.start} is negative")
            at.num_leases -= 1
            if at.num_leases == 0:
                self._unprotect(at)
            at = parent
        if node.namespace in self.retired:
            self._sweep(node.namespace)

    # ---- shrinking

    def evict(self, num_pages: int) -> int:
        """Free at least num_pages pages of the exact pool if possible; returns how many.

        Evicts tokens from the ends of unleased leaves in the policy's order, and no more of a
        leaf than is needed. 8-bit leaves are evicted only if nothing else is left.
        """
        before = self.pool.num_free_pages
        while (missing := before + num_pages - self.pool.num_free_pages) > 0:
            leaf = self.policy.pop() or self.cold_policy.pop()
            if leaf is None:
                break
            if self.before_eviction is not None:
                self.before_eviction(leaf)
            self._shorten(leaf, missing * self.pool.page_size)
        return self.pool.num_free_pages - before

    def evict_cold(self, num_pages: int) -> int:
        """Free pages of the 8-bit pool in the same way."""
        if self.cold_pool is None:
            return 0
        before = self.cold_pool.num_free_pages
        while (missing := before + num_pages - self.cold_pool.num_free_pages) > 0:
            leaf = self.cold_policy.pop()
            if leaf is None:
                break
            self._shorten(leaf, missing * self.cold_pool.page_size)
        return self.cold_pool.num_free_pages - before

    def retire(self, namespace: Namespace) -> int:
        """Evict a namespace: idle nodes at once, leased ones when their last lease ends.

        Returns the number of tokens evicted now.
        """
        before = self.num_cached_tokens
        if namespace in self.roots:
            self.retired.add(namespace)
            self._sweep(namespace)
        return before - self.num_cached_tokens

    def clear(self) -> int:
        """Evict everything without a lease; returns the number of tokens."""
        before = self.num_cached_tokens
        for namespace in list(self.roots):
            self._sweep(namespace)
        return before - self.num_cached_tokens

    def set_next_use(self, node: RadixNode, step: float | None) -> None:
        """Set the next use of a path: a step, NEVER, or None for unknown.

        Nodes above get it when the node is evicted. `advance` forgets steps that have passed.
        """
        node.next_use = step
        if node.entry is not None:
            self._queue_of(node).add(node)
        if step is not None and step != NEVER:
            self._num_hints += 1
            heapq.heappush(self._hints, (step, self._num_hints, node))

    def advance(self, step: float) -> None:
        """Forget next uses before this step, which have passed."""
        while self._hints and self._hints[0][0] < step:
            passed, _, node = heapq.heappop(self._hints)
            if node.next_use == passed and node.is_attached:
                self.set_next_use(node, None)

    def forget_next_uses(self, node: RadixNode) -> None:
        """Forget the next use of a path, which is used now."""
        if self.policy.looks_ahead:
            for each in self.path(node):
                if each.next_use is not None:
                    self.set_next_use(each, None)

    def store(self, node: RadixNode, slots: Slots, *, quantized: bool) -> None:
        """Point a node at other slots that hold the same tokens; the old ones are released.

        Holders of a lease on the node must read `slots` again; no running step may read it.
        """
        self._queue_of(node).discard(node)
        is_idle = node.num_leases == 0
        self._pool_of(node).release(node.slots, idle=is_idle)
        node.slots, node.quantized = np.array(slots, np.int32), quantized
        if is_idle:
            self._pool_of(node).mark_idle(node.slots, +1)
        if is_idle and not node.children:
            self._queue_of(node).add(node)
        self.structure.layout_version += 1

    # ---- inside

    def _append(self, parent: RadixNode, edge: bytes, slots: Slots) -> RadixNode:
        node = RadixNode(edge, slots.copy(), parent.end, parent, parent.namespace)
        self._queue_of(parent).discard(parent)
        parent.children[first_token(edge)] = node
        self.num_cached_tokens += node.length
        self._pool_of(node).mark_idle(node.slots, +1)
        self._queue_of(node).add(node)
        if self.changes is not None:
            self.changes.added(self.path(node))
        return node

    def _touch(self, node: RadixNode, *, is_hit: bool = False) -> None:
        self._clock += 1
        at: RadixNode | None = node
        while at is not None:
            at.last_use = self._clock
            if is_hit:
                at.num_hits += 1
                if self.policy.counts_hits:
                    self._queue_of(at).on_hit(at)
            at = at.parent

    def _protect(self, node: RadixNode) -> None:
        self._queue_of(node).discard(node)
        self.num_protected_tokens += node.length
        self._pool_of(node).mark_idle(node.slots, -1)

    def _unprotect(self, node: RadixNode) -> None:
        self.num_protected_tokens -= node.length
        self._pool_of(node).mark_idle(node.slots, +1)
        if not node.children:
            self._queue_of(node).add(node)

    def _shorten(self, leaf: RadixNode, num_tokens: int) -> None:
        """Remove the last num_tokens of a leaf that has left the queue, or all of it."""
        if num_tokens >= leaf.length:
            self._drop(leaf)
            return
        keep = leaf.length - num_tokens
        self._forget(leaf, leaf.slots[keep:])
        leaf.set_run(leaf.edge[: keep * TOKEN_BYTES], leaf.slots[:keep].copy(), leaf.start)
        self._queue_of(leaf).add(leaf)
        self.structure.layout_version += 1

    def _drop(self, leaf: RadixNode) -> None:
        """Remove an unleased leaf."""
        parent = leaf.parent
        assert parent is not None  # roots are never queued
        self._queue_of(leaf).discard(leaf)
        self._forget(leaf, leaf.slots)
        del parent.children[first_token(leaf.edge)]
        leaf.parent = None
        if leaf.next_use != parent.next_use:
            self.set_next_use(parent, _sooner(parent.next_use, leaf.next_use))
        self.structure.layout_version += 1
        if parent.children:
            return
        if parent.parent is None:
            self._drop_root(parent)
        elif parent.num_leases == 0:
            self._queue_of(parent).add(parent)

    def _sweep(self, namespace: Namespace) -> None:
        """Remove every idle node of a namespace, leaves first, and its root if nothing is left."""
        root = self.roots.get(namespace)
        if root is None:
            return
        for node in list(below(root))[::-1]:
            if not node.children and node.num_leases == 0:
                self._drop(node)
        if not root.children:
            self._drop_root(root)

    def _drop_root(self, root: RadixNode) -> None:
        if root.num_leases == 1:
            self.roots.pop(root.namespace, None)
            self.retired.discard(root.namespace)

    def _forget(self, node: RadixNode, slots: Slots) -> None:
        """Release slots at the end of a node that is still attached."""
        if self.changes is not None:
            self.changes.removed(self.path(node), len(slots))
        self._pool_of(node).release(slots, idle=True)
        self._queue_of(node).on_forget(node, len(slots))
        self.num_cached_tokens -= len(slots)
        self.num_evicted_tokens += len(slots)

    def _queue_of(self, node: RadixNode) -> EvictionPolicy:
        return self.cold_policy if node.quantized else self.policy

    def _pool_of(self, node: RadixNode) -> PagePool:
        if not node.quantized:
            return self.pool
        assert self.cold_pool is not None  # only a tree with a cold pool stores 8-bit nodes
        return self.cold_pool


def _sooner(a: float | None, b: float | None) -> float | None:
    """The earlier next use: a known step goes before unknown, unknown before NEVER."""
    known = [use for use in (a, b) if use is not None and use != NEVER]
    if known:
        return min(known)
    return None if a is None or b is None else NEVER
