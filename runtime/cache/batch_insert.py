"""Many keys into the tree in one pass: sorted, each key starts where it leaves the one before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixlang.errors import ParameterError
from radixlang.runtime.cache.node import TOKEN_BYTES, as_edge, num_common_tokens
from radixlang.runtime.cache.page_pool import Slots
from radixlang.runtime.cache.radix_tree import Insert, Namespace, RadixNode, RadixTree, Tokens


def insert_batch(
    tree: RadixTree,
    namespace: Namespace | str,
    keys: Sequence[Sequence[int] | Tokens],
    slots: Sequence[Slots],
) -> list[Insert]:
    """Insert whole keys with their slots, as `RadixTree.insert` would one by one from the root.

    Keys are taken in the order of their bytes, in which those with a common prefix are
    neighbours, so no key walks a prefix that it shares with the key before it. Nothing is
    evicted meanwhile, and results come in the order of the keys given.
    """
    if len(keys) != len(slots):
        raise ParameterError(f"{len(keys)} keys came with {len(slots)} runs of slots")
    edges = [as_edge(key) for key in keys]
    results: dict[int, Insert] = {}
    trail = [tree.root(namespace)]
    previous = b""
    for i in sorted(range(len(edges)), key=edges.__getitem__):
        shared = num_common_tokens(previous, edges[i])
        while trail[-1].end > shared:
            trail.pop()
        parent = trail[-1]
        results[i] = _insert_below(tree, parent, edges[i], slots[i])
        trail += _between(parent, results[i].node)
        previous = edges[i]
    return [results[i] for i in range(len(keys))]


def _insert_below(tree: RadixTree, parent: RadixNode, edge: bytes, slots: Slots) -> Insert:
    tokens = np.frombuffer(edge, np.int32, offset=parent.end * TOKEN_BYTES)
    result = tree.insert(parent, tokens, slots[parent.end :])
    tree.pool.release(slots[: parent.end])
    return Insert(result.node, result.num_inserted, result.num_duplicate + parent.end)


def _between(top: RadixNode, bottom: RadixNode) -> list[RadixNode]:
    """Nodes below top on the way to bottom, bottom included."""
    nodes = []
    at: RadixNode | None = bottom
    while at is not None and at is not top:
        nodes.append(at)
        at = at.parent
    return nodes[::-1]
