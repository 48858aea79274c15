"""Leases: what keeps a path of the tree from being evicted, with a receipt and a name.

A lease ends at a node and counts on every node from there to the root, so a node's count is the
number of leases that end at it or below. A node without any stays cached until room is needed:
release is lazy, and a later match finds it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixlang.errors import OwnershipError

if TYPE_CHECKING:
    from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree


class Lease:
    """A receipt for one pinned path. Made by `RadixTree.lease`; ends with `release`."""

    __slots__ = ("_node", "_tree", "exact", "holder")

    def __init__(self, tree: RadixTree, node: RadixNode, holder: str, exact: bool) -> None:
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
        """True once given back."""
        return self._node is None

    def move(self, node: RadixNode) -> None:
        """Lease another node instead; it is pinned before the old one is let go."""
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
        """Let the path go. Raises OwnershipError the second time."""
        node, self._node = self.node, None
        self._tree.leases.discard(self)
        self._tree.unpin(node)

    def __repr__(self) -> str:
        where = "released" if self._node is None else f"{self._node.end} tokens"
        return f"Lease({self.holder!r}, {where})"


class ProgramPins:
    """Paths that programs want kept between their calls, under a cap.

    A fork's prefix or a prebuilt prefix stays even while no branch holds it. A pin is a wish:
    beyond the cap it is refused, and nothing breaks.
    """

    def __init__(self, tree: RadixTree, max_tokens: int) -> None:
        self._tree = tree
        self.max_tokens = max_tokens
        self._pins: dict[str, list[Lease]] = {}

    def pin(self, program: str, node: RadixNode) -> bool:
        """Keep the path until the program ends; False (and no change) beyond the cap."""
        nodes = self._nodes()
        nodes.update(self._tree.path(node))
        if sum(each.length for each in nodes) > self.max_tokens:
            return False
        lease = self._tree.lease(node, holder=f"pin of {program}")
        self._pins.setdefault(program, []).append(lease)
        return True

    def release(self, program: str) -> None:
        """Let go of all that the program pinned; none is fine."""
        for lease in self._pins.pop(program, []):
            lease.release()

    def release_all(self) -> None:
        """Let go of every pin."""
        for program in list(self._pins):
            self.release(program)

    @property
    def num_pinned_tokens(self) -> int:
        """Tokens kept by pins, each counted once."""
        return sum(node.length for node in self._nodes())

    def programs(self) -> list[str]:
        """Names of the programs that hold a pin."""
        return list(self._pins)

    def _nodes(self) -> set[RadixNode]:
        leases = [lease for leases in self._pins.values() for lease in leases]
        return {node for lease in leases for node in self._tree.path(lease.node)}
