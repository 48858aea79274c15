"""Pins: paths that programs keep cached between their calls."""

from __future__ import annotations

from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree


class ProgramPins:
    """Paths that programs keep cached between their calls, under a cap.

    A fork's prefix or a prebuilt prefix stays cached while no branch holds it. A pin beyond the
    cap is refused; the prefix is then an ordinary cached one.
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
        """Release all pins of the program; it may have none."""
        for lease in self._pins.pop(program, []):
            lease.release()

    def release_all(self) -> None:
        """Release every pin."""
        for program in list(self._pins):
            self.release(program)

    @property
    def num_pinned_tokens(self) -> int:
        """Pinned tokens, each counted once."""
        return sum(node.length for node in self._nodes())

    def programs(self) -> list[str]:
        """Names of the programs that hold a pin."""
        return list(self._pins)

    def _nodes(self) -> set[RadixNode]:
        leases = [lease for leases in self._pins.values() for lease in leases]
        return {node for lease in leases for node in self._tree.path(lease.node)}
