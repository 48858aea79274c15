"""The tier below the tree: paths go to disk in blocks, and come back when a prompt matches.

A block has 64 tokens, and its name is a hash of its tokens and of the name before it, from the
fingerprint of the model and the namespace on: a block can only be found by a prompt with the same
beginning under the same weights. What is left of a path after its last whole block is its tail,
found by the name before it; so is the last block that followed, for prompts that end or differ
inside it. Tokens are compared once more when a block is read.

The engine's thread copies keys and values out of the cache and into it; files are read and written
on two other threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from radixlang.runtime.adapters.variants import VariantTable
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.node import Keys, token_ids
from radixlang.runtime.cache.pages.page_pool import PoolFull
from radixlang.runtime.cache.radix_tree import Namespace, RadixNode, RadixTree
from radixlang.runtime.disk.block_names import BLOCK, BlockNames, next_name, tail_name
from radixlang.runtime.disk.block_reader import BlockReader, FoundBlocks, WantedPrompt
from radixlang.runtime.disk.block_store import BlockStore, TokenBlock
from radixlang.runtime.disk.block_writer import BlockWriter
from radixlang.runtime.disk.buffers import Buffers, Bytes
from radixlang.runtime.disk.fingerprint import Fingerprint

MAX_FREE_BYTES = 8 << 20  # of buffers kept to be used again
_HOLDER = "disk tier"


class DiskTier:
    """Writes paths of a tree to a store, and reads them back; for the engine's thread."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        tree: RadixTree,
        cache: KVCache,
        fingerprint: Fingerprint,
        variants: VariantTable,
    ) -> None:
        block_bytes = BLOCK * cache.bytes_per_token
        self._buffers = Buffers(block_bytes, max(1, MAX_FREE_BYTES // block_bytes))
        self._store = store = BlockStore(folder, max_bytes, self._buffers)
        self._tree = tree
        self._cache = cache
        self._names = BlockNames(fingerprint, variants)
        self._writer = BlockWriter(store, self._buffers)
        self._reader = BlockReader(store, self._writer, self._names, cache.bytes_per_token)
        self._copying_s = 0.0

    @property
    def writing_s(self) -> float:
        """Processor seconds spent on writing so far, on any thread."""
        return self._copying_s + self._writer.busy_s

    # ---- writing

    def save(self, leaf: RadixNode, *, must: bool = False) -> None:
        """Queue what is missing on disk of the path that ends at a node, as far as it is exact.

        Args:
            must: wait for room in the queue; else what does not fit is not kept.
        """
        begun = time.thread_time()
        nodes = []
        for node in self._tree.path(leaf):
            if node.quantized:
                break
            nodes.append(node)
        if nodes and is_kept(leaf.namespace):
            keys = self._names.stored(np.concatenate([node.key for node in nodes]))
            slots = np.concatenate([node.slots for node in nodes])
            self._save(leaf.namespace, keys, slots, must)
        self._copying_s += time.thread_time() - begun

    def save_all(self) -> None:
        """Write every path of the tree, and wait until it is on disk."""
        for node in list(self._tree.nodes()):
            if not node.children and not node.is_root:
                self.save(node, must=True)
        self.drain()

    def drain(self) -> None:
        """Wait until everything queued so far is on disk."""
        self._writer.drain()

    def close(self) -> None:
        """Write what is cached, and end the threads."""
        self._reader.close()
        self.save_all()
        self._buffers.clear()

    def _save(self, namespace: Namespace, keys: Keys, slots: NDArray[np.int32], must: bool) -> None:
        above = self._names.root(namespace)
        for start, name in self._names.of(namespace, keys):
            stop = start + BLOCK
            if not self._store.has(name) and not self._writer.has(name):
                block = self._block(keys[start:stop], slots[start:stop])
                if not self._writer.put(name, block, must=must):
                    return  # what follows could not be found without it
                link = TokenBlock(block.tokens, _text(name), block.spans)
                self._writer.put(next_name(above), link, must=must)
            above = name
        start = len(keys) // BLOCK * BLOCK
        tail, tails = tail_name(above), self._reader.tails
        if len(keys) - start > tails.get(tail, 0) and self._writer.put(
            tail, self._block(keys[start:], slots[start:]), must=must
        ):
            tails[tail] = len(keys) - start

    def _block(self, keys: Keys, slots: NDArray[np.int32]) -> TokenBlock:
        payload = self._buffers.take(len(slots) * self._cache.bytes_per_token)
        self._cache.read(slots, out=self._values(payload))
        return TokenBlock(token_ids(keys), payload, self._names.spans(keys))

    def _values(self, payload: Bytes) -> torch.Tensor:
        """A payload as keys and values: [num_layers, 2, n, num_kv_heads, head_dim]."""
        cache = self._cache
        shape = (len(cache), 2, -1, cache.num_kv_heads, cache.head_dim)
        return torch.from_numpy(payload).view(cache.dtype).view(shape)

    # ---- reading

    def ask(
        self,
        namespace: Namespace,
        keys: Keys,
        at: int,
        deliver: Callable[[FoundBlocks], None],
    ) -> None:
        """Look for the tokens of a prompt from position `at` on; `deliver` gets what was found, on
        another thread."""
        self._reader.ask(WantedPrompt(namespace, self._names.stored(keys), at), deliver)

    def place(self, namespace: Namespace, keys: Keys, limit: int, found: FoundBlocks) -> int:
        """Put blocks of a prompt into the tree, as far as there is room and not beyond the first
        `limit` tokens; returns the number of tokens placed."""
        match = self._tree.match(namespace, keys[:limit])
        lease = self._tree.lease(match.node, _HOLDER)
        begin = at = match.length
        try:
            for start, num, payload in found.blocks:
                stop = min(start + num, limit)
                if start > at or lease.node.end != at:
                    break
                if stop <= at:
                    continue
                node = self._placed(lease.node, keys[at:stop], payload, at - start)
                if node is None:
                    break
                lease.move(node)
                at = stop
        finally:
            lease.release()
        for _, _, payload in found.blocks:
            self._buffers.give(payload)
        return at - begin

    def _placed(self, above: RadixNode, keys: Keys, payload: Bytes, skip: int) -> RadixNode | None:
        """Store a block without its first `skip` tokens below a node; None without room."""
        pool, cache = self._tree.pool, self._cache
        after = int(above.slots[-1]) if above.length and not above.quantized else None
        missing = pool.num_pages_for(len(keys), after) - pool.num_free_pages
        if missing > 0:
            self._tree.evict(missing)
        try:
            slots = pool.alloc(len(keys), after_slot=after, holder=_HOLDER)
        except PoolFull:
            return None
        cache.write(slots, self._values(payload)[:, :, skip : skip + len(keys)])
        return self._tree.insert(above, keys, slots).node


def is_kept(namespace: Namespace) -> bool:
    """Whether other processes could read it: it was computed with the weights of the start."""
    return not namespace.weights_version


def _text(name: str) -> Bytes:
    return np.frombuffer(name.encode(), np.uint8)
