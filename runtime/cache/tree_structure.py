"""The radix tree's structure: nodes, walks, splits and merges. It knows no pool and no lease."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from radixlang.errors import OwnershipError, ParameterError
from radixlang.runtime.cache.node import (
    TOKEN_BYTES,
    Keys,
    Namespace,
    RadixNode,
    Tokens,
    as_edge,
    first_token,
    walk,
)
from radixlang.runtime.cache.pages.slots import NO_SLOTS, Slots


class TreeStructure:
    """A root for each namespace, and runs of tokens below."""

    def __init__(self) -> None:
        self.roots: dict[Namespace, RadixNode] = {}
        self.layout_version = 0  # grows whenever nodes or the slots of a cached token change

    def root(self, namespace: Namespace | str) -> RadixNode:
        """The root of a namespace, made at the first call."""
        if isinstance(namespace, str):
            namespace = Namespace(namespace)
        root = self.roots.get(namespace)
        if root is None:
            root = RadixNode(b"", NO_SLOTS, 0, None, namespace, num_leases=1)
            self.roots[namespace] = root
        return root

    def peek(
        self, namespace: Namespace | str, tokens: Sequence[int] | Tokens, *, exact: bool = False
    ) -> int:
        """Length of the longest cached prefix. Changes nothing."""
        if isinstance(namespace, str):
            namespace = Namespace(namespace)
        root = self.roots.get(namespace)
        if root is None:
            return 0
        found = walk(root, as_edge(tokens), exact=exact)
        return found.num_tokens + found.part

    def path(self, node: RadixNode) -> list[RadixNode]:
        """Nodes from below the root to the node itself."""
        nodes = []
        at: RadixNode | None = node
        while at is not None and at.parent is not None:
            nodes.append(at)
            at = at.parent
        return nodes[::-1]

    def slots(self, node: RadixNode) -> Slots:
        """Slots of every token from the root to the end of the node, int32 [node.end]."""
        runs = [each.slots for each in self.path(node)]
        return np.concatenate(runs) if runs else NO_SLOTS

    def tokens(self, node: RadixNode) -> Keys:
        """Key elements from the root to the end of the node, int64 [node.end]."""
        return np.frombuffer(b"".join(each.edge for each in self.path(node)), np.int64)

    def nodes(self) -> Iterator[RadixNode]:
        """Every node but the roots, parents before children."""
        for root in self.roots.values():
            yield from below(root)

    @property
    def num_nodes(self) -> int:
        """Number of nodes without the roots (walks the tree: for statistics)."""
        return sum(1 for _ in self.nodes())

    def split(self, node: RadixNode, num_tokens: int) -> RadixNode:
        """Cut a node after num_tokens of its run; returns the new upper node.

        The node object keeps the lower part, and with it its leases, children and place in the
        eviction queue. No match changes.
        """
        parent = node.parent
        if parent is None or not 0 < num_tokens < node.length:
            raise ParameterError(f"cannot split {node.length} tokens after {num_tokens}")
        cut = num_tokens * TOKEN_BYTES
        upper = RadixNode(
            node.edge[:cut], node.slots[:num_tokens].copy(), node.start, parent, node.namespace
        )
        _copy_state(node, upper)
        parent.children[first_token(upper.edge)] = upper
        node.set_run(node.edge[cut:], node.slots[num_tokens:].copy(), node.start + num_tokens)
        node.parent = upper
        upper.children[first_token(node.edge)] = node
        self.layout_version += 1
        return upper

    def merge(self, node: RadixNode) -> bool:
        """Merge a node with its parent if that changes neither matches nor eviction order.

        They are merged if the node is an only child, the same leases pass through both, and both
        have the same uses, hints and tier. The node object stays; the parent is removed.
        """
        upper = node.parent
        if upper is None or upper.parent is None or not _are_alike(upper, node):
            return False
        edge, slots = upper.edge + node.edge, np.concatenate((upper.slots, node.slots))
        node.set_run(edge, slots, upper.start)
        node.parent = upper.parent
        node.parent.children[first_token(edge)] = node
        upper.parent = None
        upper.children = {}
        self.layout_version += 1
        return True

    def merge_chains(self) -> int:
        """Merge every chain of only children that may be merged; returns the nodes removed."""
        num_merged = 0
        for node in list(self.nodes())[::-1]:
            while node.parent is not None and self.merge(node):
                num_merged += 1
        return num_merged

    def end_at(self, node: RadixNode, child: RadixNode | None, part: int) -> RadixNode:
        """The node that ends `part` tokens into the child, which is split if needed."""
        if child is None or part == 0:
            return node
        return child if part == child.length else self.split(child, part)

    def check_attached(self, node: RadixNode) -> None:
        """Raise an OwnershipError for a node that is no longer of this tree."""
        if not node.is_attached or (node.is_root and self.roots.get(node.namespace) is not node):
            raise OwnershipError(
                f"the node of {node.length} tokens at {node.start} was evicted or merged; "
                "lease a match before anything else is asked of the tree"
            )


def below(root: RadixNode) -> Iterator[RadixNode]:
    """Every node below, parents before children."""
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def _copy_state(source: RadixNode, target: RadixNode) -> None:
    target.num_leases = source.num_leases
    target.last_use, target.num_hits = source.last_use, source.num_hits
    target.next_use = source.next_use
    target.quantized, target.is_hot = source.quantized, source.is_hot


def _are_alike(upper: RadixNode, node: RadixNode) -> bool:
    return (
        len(upper.children) == 1
        and upper.num_leases == node.num_leases
        and upper.last_use == node.last_use
        and upper.next_use == node.next_use
        and upper.quantized == node.quantized
        and upper.is_hot == node.is_hot
    )
