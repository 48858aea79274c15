"""Leases: each protects a path of the tree from eviction, and has a holder's name.

A lease ends at a node and counts on every node from there to the root, so a node's count is the
number of leases that end at it or below. A node without leases stays cached until room is needed,
and a later match finds it again.
"""

from __future__ import annotations

from typing import Protocol

from radixlang.errors import OwnershipError
from radixlang.runtime.cache.node import RadixNode


class Pinning(Protocol):
    """Counts leases on the paths of a tree."""

    leases: set[Lease]

    def pin(self, node: RadixNode) -> None:
        """Add one lease to every node of the path."""
        ...

    def unpin(self, node: RadixNode) -> None:
        """Remove one lease from every node of the path."""
        ...


class Lease:
    """The lease of one path. Made by `RadixTree.lease`; ends with `release`."""

    __slots__ = ("_node", "_tree", "exact", "holder")

    def __init__(self, tree: Pinning, node: RadixNode, holder: str, exact: bool) -> None:
        self._tree = tree
        self._node: RadixNode | None = None
        self.holder = holder
        self.exact = exact
        tree.pin(node)
        self._node = node
        tree.leases.add(self)

    @property
    def node(self) -> RadixNode:
        """The node at which the leased path ends. Raises OwnershipError after release."""
        if self._node is None:
            raise OwnershipError(f"the lease of {self.holder!r} was released; take a new one")
        return self._node

    @property
    def is_released(self) -> bool:
        """True once released."""
        return self._node is None

    def move(self, node: RadixNode) -> None:
        """Lease another node instead; it is pinned before the old one is released."""
        old = self.node
        if node is not old:
            self._tree.pin(node)
            self._node = node
            self._tree.unpin(old)

    def fork(self, holder: str | None = None) -> Lease:
        """A second lease of the same path."""
        label = self.holder if holder is None else holder
        return Lease(self._tree, self.node, label, self.exact)

    def release(self) -> None:
        """Release the path. Raises OwnershipError the second time."""
        node, self._node = self.node, None
        self._tree.leases.discard(self)
        self._tree.unpin(node)

    def __repr__(self) -> str:
        where = "released" if self._node is None else f"{self._node.end} tokens"
        return f"Lease({self.holder!r}, {where})"
