"""The tier below the tree: paths go to disk in blocks, and come back when a prompt matches.

A block has 64 tokens, and its name is a hash of its tokens and of the name before it, from the
fingerprint of the model and the namespace on: a block can only be found by a prompt with the same
beginning under the same weights. What is left of a path after its last whole block is its tail,
found by the name before it; so is the last block that followed, for prompts that end or differ
inside it. Tokens are compared once more when a block is read.

Everything here runs on the engine's thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray

from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.node import Keys, token_ids, variants_of
from radixlang.runtime.cache.pages.page_pool import PoolFull
from radixlang.runtime.cache.radix_tree import Namespace, RadixNode, RadixTree
from radixlang.runtime.disk.block_store import BlockStore, TokenBlock
from radixlang.runtime.disk.fingerprint import Fingerprint

BLOCK = 64  # tokens
TokenArray = NDArray[np.int32]


class DiskTier:
    """Writes paths of a tree to a store, and reads them back."""

    def __init__(
        self, store: BlockStore, tree: RadixTree, cache: KVCache, fingerprint: Fingerprint
    ) -> None:
        self._store = store
        self._tree = tree
        self._cache = cache
        about = asdict(fingerprint)
        del about["namespace"]
        self._digest = hashlib.blake2b(repr(sorted(about.items())).encode()).digest()
        self._tails: dict[str, int] = {}  # tokens of the tails that were written here

    # ---- writing

    def save(self, leaf: RadixNode) -> None:
        """Write the path that ends at a node, as far as it is exact and not there already."""
        nodes = []
        for node in self._tree.path(leaf):
            if node.quantized:
                break
            nodes.append(node)
        if not nodes:
            return
        keys = np.concatenate([node.key for node in nodes])
        if not self._is_kept(leaf.namespace, keys):
            return
        slots = np.concatenate([node.slots for node in nodes])
        tokens = token_ids(keys)
        above = self._root(leaf.namespace)
        for start, name in self._names(leaf.namespace, tokens):
            if not self._store.has(name):
                self._write(name, tokens, slots, start, start + BLOCK)
                self._store.write(_next_name(above), tokens[start : start + BLOCK], name.encode())
            above = name
        start = len(tokens) // BLOCK * BLOCK
        tail = _tail_name(above)
        if len(tokens) - start > self._tails.get(tail, 0):
            self._write(tail, tokens, slots, start, len(tokens))
            self._tails[tail] = len(tokens) - start

    def save_all(self) -> None:
        """Write every path of the tree."""
        for node in list(self._tree.nodes()):
            if not node.children and not node.is_root:
                self.save(node)

    def _write(
        self, name: str, tokens: TokenArray, slots: NDArray[np.int32], start: int, stop: int
    ) -> None:
        data = self._cache.read(slots[start:stop])
        payload = data.contiguous().cpu().view(torch.uint8).numpy().tobytes()
        self._store.write(name, tokens[start:stop], payload)

    # ---- reading

    def fetch(self, namespace: Namespace, keys: Keys, limit: int) -> None:
        """Bring what the store has of the first `limit` tokens of a prompt into the tree, after
        what is cached already."""
        if not self._is_kept(namespace, keys) or not limit:
            return
        found = self._tree.match(namespace, keys[:limit])
        if found.length == limit:
            return
        lease = self._tree.lease(found.node, "disk tier")
        at = found.length
        try:
            for start, block in self._blocks(namespace, token_ids(keys), at):
                stop = min(start + len(block.tokens), limit)
                if stop <= at:
                    return
                node = self._placed(lease.node, keys[at:stop], block, at - start)
                if node is None:
                    return
                deeper = self._tree.lease(node, "disk tier")
                lease.release()
                lease, at = deeper, stop
        finally:
            lease.release()

    def _blocks(
        self, namespace: Namespace, tokens: TokenArray, at: int
    ) -> Iterator[tuple[int, TokenBlock]]:
        """(first position, block) of the blocks from position `at` on; each begins with the
        prompt's own tokens, and the last is cut where the prompt ends or differs."""
        above = self._root(namespace)
        start = 0
        for start, name in self._names(namespace, tokens):
            if start + BLOCK > at:
                block = self._read(name)
                if block is None or not np.array_equal(block.tokens, tokens[start : start + BLOCK]):
                    break
                yield start, block
            above, start = name, start + BLOCK
        last = self._longest(above, tokens[start : start + BLOCK])
        if last is not None and start + len(last.tokens) > at:
            yield start, last

    def _longest(self, above: str, rest: TokenArray) -> TokenBlock | None:
        """What begins as the prompt goes on, of the tail after a block and of the last block that
        followed it."""
        found: list[TokenBlock] = []
        tail = self._read(_tail_name(above))
        if tail is not None:
            self._tails[_tail_name(above)] = len(tail.tokens)
            found.append(tail)
        link = self._store.read(_next_name(above))
        if link is not None and _num_same(link.tokens, rest):
            name = link.payload.decode("ascii", "replace")
            block = self._read(name) if name.isalnum() else None
            found += [block] if block is not None else []
        best = max(found, key=lambda block: _num_same(block.tokens, rest), default=None)
        return None if best is None else self._cut(best, _num_same(best.tokens, rest))

    def _read(self, name: str) -> TokenBlock | None:
        block = self._store.read(name)
        if block is None or len(block.payload) != len(block.tokens) * self._cache.bytes_per_token:
            return None
        return block

    def _data(self, block: TokenBlock) -> torch.Tensor:
        cache = self._cache
        shape = (len(cache), 2, len(block.tokens), cache.num_kv_heads, cache.head_dim)
        return torch.frombuffer(bytearray(block.payload), dtype=cache.dtype).view(shape)

    def _cut(self, block: TokenBlock, num: int) -> TokenBlock:
        if num == len(block.tokens):
            return block
        data = self._data(block)[:, :, :num].contiguous()
        return TokenBlock(block.tokens[:num], data.view(torch.uint8).numpy().tobytes())

    def _placed(
        self, above: RadixNode, keys: Keys, block: TokenBlock, skip: int
    ) -> RadixNode | None:
        """Store a block without its first `skip` tokens below a node; None without room."""
        pool = self._tree.pool
        after = int(above.slots[-1]) if above.length and not above.quantized else None
        missing = pool.num_pages_for(len(keys), after) - pool.num_free_pages
        if missing > 0:
            self._tree.evict(missing)
        try:
            slots = pool.alloc(len(keys), after_slot=after, holder="disk tier")
        except PoolFull:
            return None
        data = self._data(block)[:, :, skip : skip + len(keys)]
        self._cache.write(slots, data.to(self._cache.device))
        return self._tree.insert(above, keys, slots).node

    # ---- names

    def _is_kept(self, namespace: Namespace, keys: Keys) -> bool:
        """Whether other processes could read it: no adapter, and the weights of the start."""
        return not namespace.weights_version and not variants_of(keys).any()

    def _root(self, namespace: Namespace) -> str:
        salt = namespace.salt.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(self._digest + salt, digest_size=20).hexdigest()

    def _names(self, namespace: Namespace, tokens: TokenArray) -> Iterator[tuple[int, str]]:
        """(first position, name) of every whole block."""
        name = self._root(namespace)
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            content = name.encode() + tokens[start : start + BLOCK].tobytes()
            name = hashlib.blake2b(content, digest_size=20).hexdigest()
            yield start, name


def _num_same(a: TokenArray, b: TokenArray) -> int:
    """Tokens with which both begin."""
    num = min(len(a), len(b))
    same = a[:num] == b[:num]
    return num if same.all() else int(same.argmin())


def _next_name(above: str) -> str:
    return f"{above}.next"


def _tail_name(above: str) -> str:
    return f"{above}.tail"
