"""From a program's hints to next uses of tree nodes, for eviction that looks ahead.

A hint counts requests of its own branch. The clock here counts requests of all branches; while
every live branch goes on in its turn, one of the branch's is as many of the clock as there are
branches. While a branch leases its path nothing of it can be evicted, so what it expects is
written into the tree when it lets go.
"""

from __future__ import annotations

from radixlang.runtime.cache.eviction import NEVER
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree
from radixlang.runtime.requests.branch import BranchState


class NextUses:
    """Keeps `next_use` of a tree's nodes; without effect under policies that do not ask for it."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._num_requests = 0

    def begin_request(self, state: BranchState) -> None:
        """A generation or scoring begins: uses expected before it have passed."""
        state.next_use = None
        self._num_requests += 1
        if self._tree.policy.looks_ahead:
            self._tree.advance(self._num_requests)

    def expect(self, state: BranchState, next_in: int | None, num_branches: int) -> None:
        """The path of a branch is next used `next_in` of its own requests from now, or never."""
        ahead = NEVER if next_in is None else next_in * max(1, num_branches)
        state.next_use = self._num_requests + ahead

    def let_go(self, state: BranchState) -> None:
        """Tell the tree what a branch expects; called before its lease ends."""
        if state.lease is None or state.next_use is None or not self._tree.policy.looks_ahead:
            return
        if state.next_use != NEVER:
            self._tree.set_next_use(state.lease.node, state.next_use)
        else:
            self._give_up(state.lease.node, state.family.num_found or 0)

    def _give_up(self, node: RadixNode, num_found: int) -> None:
        """Never again, for what these branches alone have computed and nobody else uses.

        A beginning that they found in the cache, or that others go on from, may be wanted by
        other programs: nothing is said of it.
        """
        at: RadixNode | None = node
        while at is not None and at.parent is not None and at.start >= num_found:
            if at.num_leases > 1 or any(c.next_use != NEVER for c in at.children.values()):
                return
            self._tree.set_next_use(at, NEVER)
            at = at.parent
