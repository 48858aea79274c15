"""The nodes of the radix tree and how a key walks down them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from radixlang.runtime.cache.pages.slots import Slots

Tokens = NDArray[np.int32] | NDArray[np.int64]
Keys = NDArray[np.int64]
Rank = tuple[int, float]  # smaller leaves the cache sooner
Entry = tuple[Rank, int, "RadixNode"]  # rank when queued, order of queueing, leaf
TOKEN_BYTES = 8
VARIANT_SHIFT = 32  # bits of a key element: the token id, and above it what computed the token
_TOKEN_MASK = (1 << VARIANT_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Namespace:
    """The part of a key that is not tokens. Paths of different namespaces share nothing."""

    salt: str = ""
    weights_version: int = 0


@dataclass(slots=True, eq=False)
class RadixNode:
    """A run of tokens below its parent, with the slots of their keys and values.

    `edge` is the key as bytes (comparison and lookup use bytes), `key` the same memory as
    int64 [length]: token ids, and above their 32 bits the variant that computed each
    (adapters/variants.py). A node object always keeps the end of its run: a split adds a new node
    above.
    """

    edge: bytes
    slots: Slots  # int32 [length]; of the cold pool when `quantized`
    start: int  # position of the first token
    parent: RadixNode | None
    namespace: Namespace
    key: Keys = field(init=False, repr=False)
    children: dict[bytes, RadixNode] = field(default_factory=dict, repr=False)
    num_leases: int = 0
    last_use: int = 0
    num_hits: int = 0
    next_use: float | None = None  # a step, NEVER, or None: nothing is known
    quantized: bool = False
    is_hot: bool = False  # in the protected segment of segmented LRU
    entry: Entry | None = field(default=None, repr=False)  # its live entry in the eviction queue

    def __post_init__(self) -> None:
        self.key = np.frombuffer(self.edge, np.int64)

    @property
    def length(self) -> int:
        """Tokens of this node's run."""
        return len(self.slots)

    @property
    def end(self) -> int:
        """Tokens from the root to the end of this node."""
        return self.start + len(self.slots)

    @property
    def is_root(self) -> bool:
        """True for the empty node at the top of a namespace."""
        return self.parent is None and not self.edge

    @property
    def is_attached(self) -> bool:
        """False once the node was evicted or merged away."""
        return self.parent is not None or not self.edge

    def set_run(self, edge: bytes, slots: Slots, start: int) -> None:
        """Replace tokens and slots together."""
        self.edge, self.slots, self.start = edge, slots, start
        self.key = np.frombuffer(edge, np.int64)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest cached prefix: the node that ends with it, and its length in tokens."""

    node: RadixNode
    length: int


@dataclass(frozen=True, slots=True)
class Insert:
    """The result of an insertion.

    `node` ends the inserted key. `num_duplicate` tokens were cached already: their offered slots
    were released, so the caller now reads the tree's slots (`RadixTree.slots`). Tokens beyond
    `num_inserted + num_duplicate` stay the caller's (only below a leased 8-bit node).
    """

    node: RadixNode
    num_inserted: int
    num_duplicate: int


@dataclass(frozen=True, slots=True)
class Walk:
    """How far a key matches: `node` as a whole, then `part` tokens of its child `child`.

    `num_tokens` counts the tokens of the key up to the end of `node`.
    """

    node: RadixNode
    num_tokens: int
    child: RadixNode | None
    part: int


def as_edge(tokens: Sequence[int] | Tokens) -> bytes:
    """Key elements as bytes, in which edges are compared; token ids alone are the plain model's."""
    return np.ascontiguousarray(tokens, np.int64).tobytes()


def token_ids(keys: Keys) -> NDArray[np.int32]:
    """The token ids of key elements, int32 [n]."""
    return (keys & _TOKEN_MASK).astype(np.int32)


def variants_of(keys: Keys) -> Keys:
    """The variants of key elements, int64 [n]; 0 is the plain model."""
    return keys >> VARIANT_SHIFT


def first_token(edge: bytes, at: int = 0) -> bytes:
    """Dictionary key of the child that continues with token `at` of the edge."""
    return edge[at * TOKEN_BYTES : (at + 1) * TOKEN_BYTES]


def walk(node: RadixNode, edge: bytes, at: int = 0, *, exact: bool = False) -> Walk:
    """Follow the edge from token `at` down from the node; `exact` stops at 8-bit nodes."""
    offset, stop = at * TOKEN_BYTES, len(edge)
    while offset < stop:
        child = node.children.get(edge[offset : offset + TOKEN_BYTES])
        if child is None or (exact and child.quantized):
            break
        if not edge.startswith(child.edge, offset):
            part = num_common_tokens(child.edge, edge, offset)
            return Walk(node, offset // TOKEN_BYTES, child, part)
        offset += len(child.edge)
        node = child
    return Walk(node, offset // TOKEN_BYTES, None, 0)


def num_common_tokens(a: bytes, b: bytes, offset: int = 0) -> int:
    """Length in tokens of the common prefix of a and b[offset:], offset in bytes."""
    num_tokens = min(len(a), len(b) - offset) // TOKEN_BYTES
    left = np.frombuffer(a, np.int64, num_tokens)
    right = np.frombuffer(b, np.int64, num_tokens, offset)
    unequal = np.flatnonzero(left != right)
    return int(unequal[0]) if len(unequal) else num_tokens
