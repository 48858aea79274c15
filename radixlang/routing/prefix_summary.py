"""What several workers have cached: one radix tree of tokens, each node with those who hold it.

A path is the bytes of its token ids, int32 each. A worker that holds a node holds all above it, as
its own tree does, so one walk tells for every worker how much of a path it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

TOKEN_BYTES = 4


@dataclass(slots=True, eq=False)
class SummaryNode:
    """A run of tokens. `holders` has bit w set if worker w holds the whole run."""

    edge: bytes
    parent: SummaryNode | None
    holders: int = 0
    children: dict[bytes, SummaryNode] = field(default_factory=dict, repr=False)


class PrefixSummary:
    """Paths of `num_workers` trees, under roots that share nothing (namespaces, for example)."""

    def __init__(self, num_workers: int) -> None:
        self._roots: dict[str, SummaryNode] = {}
        self.num_nodes = 0
        self.num_tokens = [0] * num_workers  # that each worker holds

    def held(self, root: str, path: bytes) -> list[int]:
        """For every worker, how many of the path's first tokens it holds."""
        found = [0] * len(self.num_tokens)
        node, at = self._roots.get(root), 0
        mask = (1 << len(found)) - 1
        while node is not None and at < len(path):
            child = node.children.get(path[at : at + TOKEN_BYTES])
            here = 0 if child is None else mask & child.holders
            _set(found, mask & ~here, at // TOKEN_BYTES)
            mask = here
            if child is None or not mask:
                return found
            part = _num_common_bytes(child.edge, path, at)
            at += part
            if part < len(child.edge):
                break
            node = child
        _set(found, mask, at // TOKEN_BYTES)
        return found

    def insert(self, worker: int, root: str, path: bytes) -> None:
        """Note that a worker holds a path."""
        node, at = self._root(root), 0
        bit = 1 << worker
        while at < len(path):
            child = node.children.get(path[at : at + TOKEN_BYTES])
            if child is None:
                child = SummaryNode(path[at:], node)
                node.children[path[at : at + TOKEN_BYTES]] = child
                self.num_nodes += 1
            part = _num_common_bytes(child.edge, path, at)
            if part < len(child.edge):
                child = self._split(child, part)
            if not child.holders & bit:
                child.holders |= bit
                self.num_tokens[worker] += part // TOKEN_BYTES
            node, at = child, at + part

    def remove(self, worker: int, root: str, path: bytes, num_kept: int) -> None:
        """Note that a worker holds no more of a path than its first `num_kept` tokens, and nothing
        that continues it there."""
        node, at = self._roots.get(root), 0
        kept = num_kept * TOKEN_BYTES
        while node is not None and at < len(path):
            child = node.children.get(path[at : at + TOKEN_BYTES])
            if child is None or not child.holders >> worker & 1:
                return
            part = _num_common_bytes(child.edge, path, at)
            if at + part > kept:
                if at < kept:
                    child = next(iter(self._split(child, kept - at).children.values()))
                self._clear(worker, child)
                return
            if part < len(child.edge):
                return
            node, at = child, at + part

    def forget(self, worker: int) -> None:
        """Note that a worker holds nothing."""
        for root in list(self._roots.values()):
            for child in list(root.children.values()):
                if child.holders >> worker & 1:
                    self._clear(worker, child)

    def _root(self, name: str) -> SummaryNode:
        return self._roots.setdefault(name, SummaryNode(b"", None))

    def _split(self, node: SummaryNode, num_bytes: int) -> SummaryNode:
        """Cut a node after so many bytes; returns the new upper part."""
        parent = node.parent
        assert parent is not None
        upper = SummaryNode(node.edge[:num_bytes], parent, node.holders)
        parent.children[upper.edge[:TOKEN_BYTES]] = upper
        node.edge, node.parent = node.edge[num_bytes:], upper
        upper.children[node.edge[:TOKEN_BYTES]] = node
        self.num_nodes += 1
        return upper

    def _clear(self, worker: int, top: SummaryNode) -> None:
        """Take a worker out of a node and all below; nodes that nobody holds go."""
        bit = 1 << worker
        for node in [top, *_held_below(top, bit)][::-1]:
            node.holders &= ~bit
            self.num_tokens[worker] -= len(node.edge) // TOKEN_BYTES
            if not node.holders and node.parent is not None:
                del node.parent.children[node.edge[:TOKEN_BYTES]]
                node.parent = None
                self.num_nodes -= 1


def _held_below(top: SummaryNode, bit: int) -> Iterator[SummaryNode]:
    """The nodes below with this holder, parents before children."""
    stack = [child for child in top.children.values() if child.holders & bit]
    while stack:
        node = stack.pop()
        yield node
        stack += [child for child in node.children.values() if child.holders & bit]


def _set(found: list[int], mask: int, num_tokens: int) -> None:
    while mask:
        low = mask & -mask
        found[low.bit_length() - 1] = num_tokens
        mask ^= low


def _num_common_bytes(edge: bytes, path: bytes, at: int) -> int:
    """How many bytes of an edge a path continues with at a position, in whole tokens."""
    if path.startswith(edge, at):
        return len(edge)
    num = min(len(edge), len(path) - at)
    unequal = int.from_bytes(edge[:num], "big") ^ int.from_bytes(path[at : at + num], "big")
    same = num - (unequal.bit_length() + 7) // 8
    return same - same % TOKEN_BYTES
