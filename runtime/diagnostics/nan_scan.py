"""A scan for cached nodes with NaN, infinite or very large keys or values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree


@dataclass(frozen=True, slots=True)
class WildNode:
    """A node with bad numbers: its positions, the layer and tensor with the worst value, and
    that value."""

    start: int
    end: int
    layer: int
    tensor: str
    worst: float

    def __str__(self) -> str:
        what = f"|{self.tensor}| = {self.worst:g} in layer {self.layer}"
        return f"node of tokens {self.start} to {self.end}: {what}"


def find_wild_nodes(tree: RadixTree, cache: KVCache, *, max_abs: float = 1e4) -> list[WildNode]:
    """Nodes with a key or value that is NaN, infinite, or beyond max_abs in magnitude.

    Reads every exact cached token: for debugging and idle moments.
    """
    found = (_worst(node, cache) for node in tree.nodes() if not node.quantized)
    return [wild for wild in found if not wild.worst <= max_abs]


def _worst(node: RadixNode, cache: KVCache) -> WildNode:
    size = cache.read(node.slots).abs().amax(dim=(2, 3, 4)).float()  # [num_layers, 2]; keeps NaN
    flat = torch.nan_to_num(size, nan=math.inf, posinf=math.inf).flatten()
    at = int(flat.argmax())
    layer, which = divmod(at, 2)
    return WildNode(node.start, node.end, layer, "kv"[which], float(size.flatten()[at]))
