"""From a program's hints to next uses of tree nodes, for the eviction policy "lookahead".

A hint counts requests of its own branch. The clock here counts requests of all branches; if all
live branches take turns, one request of a branch is as many ticks of the clock as there are
branches. A branch's path cannot be evicted while it is leased, so the hint is written into the tree
when the lease ends.
"""

from __future__ import annotations

from radixlang.runtime.cache.eviction import NEVER
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree
from radixlang.runtime.requests.branch_state import BranchState


class NextUses:
    """Sets `next_use` of a tree's nodes; no effect under policies that do not use it."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._num_requests = 0

    def begin_request(self, state: BranchState) -> None:
        """Advance the clock at the begin of a generation or scoring; earlier uses have passed."""
        state.next_use = None
        self._num_requests += 1
        if self._tree.policy.looks_ahead:
            self._tree.advance(self._num_requests)

    def expect(self, state: BranchState, next_in: int | None, num_branches: int) -> None:
        """Note that the path of a branch is used in `next_in` of its requests, or (None) never."""
        ahead = NEVER if next_in is None else next_in * max(1, num_branches)
        state.next_use = self._num_requests + ahead

    def let_go(self, state: BranchState) -> None:
        """Write the hint of a branch into the tree; called before its lease ends."""
        if state.lease is None or state.next_use is None or not self._tree.policy.looks_ahead:
            return
        if state.next_use != NEVER:
            self._tree.set_next_use(state.lease.node, state.next_use)
        else:
            self._give_up(state.lease.node, state.family.num_found or 0)

    def _give_up(self, node: RadixNode, num_found: int) -> None:
        """Set NEVER for the nodes that only these branches have computed and use.

        Other programs may need a beginning that was found in the cache, or that others continue:
        its next use stays unknown.
        """
        at: RadixNode | None = node
        while at is not None and at.parent is not None and at.start >= num_found:
            if at.num_leases > 1 or any(c.next_use != NEVER for c in at.children.values()):
                return
            self._tree.set_next_use(at, NEVER)
            at = at.parent
