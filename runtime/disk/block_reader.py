"""Finds the blocks of prompts, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

from radixlang.runtime.cache.node import Keys
from radixlang.runtime.cache.radix_tree import Namespace
from radixlang.runtime.disk.block_names import BLOCK, BlockNames, next_name, tail_name
from radixlang.runtime.disk.block_store import BlockStore, TokenBlock
from radixlang.runtime.disk.block_writer import BlockWriter
from radixlang.runtime.disk.buffers import Bytes

log = logging.getLogger("radixlang.runtime")
MAX_BYTES_READ = 64 << 20  # of one prompt before its blocks are placed
JOIN_S = 5.0  # a disk that hangs does not keep a runtime from closing


@dataclass(frozen=True, slots=True)
class WantedPrompt:
    """The part of a prompt that is not cached: keys in their stored form, from position `at` on."""

    namespace: Namespace
    keys: Keys
    at: int


@dataclass(frozen=True, slots=True)
class FoundBlocks:
    """(first position, tokens, payload) of blocks in order, and whether there may be more."""

    blocks: tuple[tuple[int, int, Bytes], ...] = ()
    is_partial: bool = False


class BlockReader:
    """Reads the blocks of one prompt after the other.

    Args:
        bytes_per_token: of keys and values; a block of another size is no block.
    """

    def __init__(
        self, store: BlockStore, writer: BlockWriter, names: BlockNames, bytes_per_token: int
    ) -> None:
        self._store = store
        self._writer = writer
        self._names = names
        self._bytes_per_token = bytes_per_token
        self.tails: dict[str, int] = {}  # tokens of the tails that are known
        self._asked: SimpleQueue[tuple[WantedPrompt, Callable[[FoundBlocks], None]] | None]
        self._asked = SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, wanted: WantedPrompt, deliver: Callable[[FoundBlocks], None]) -> None:
        """Read on the thread; `deliver` is called there."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="radixlang-disk-reader", daemon=True
            )
            self._thread.start()
        self._asked.put((wanted, deliver))

    def close(self) -> None:
        """End the thread."""
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            wanted, deliver = asked
            try:
                found = self.find(wanted)
            except Exception:
                log.exception("a prompt could not be looked up on disk")
                found = FoundBlocks()
            deliver(found)

    def find(self, wanted: WantedPrompt) -> FoundBlocks:
        """The blocks of a prompt, up to the first that is missing or to the most bytes at once."""
        found: list[tuple[int, int, Bytes]] = []
        num_bytes = 0
        for start, num, block in self._blocks(wanted):
            if num_bytes and num_bytes + block.payload.nbytes > MAX_BYTES_READ:
                return FoundBlocks(tuple(found), is_partial=True)
            found.append((start, num, block.payload))
            num_bytes += block.payload.nbytes
        return FoundBlocks(tuple(found))

    def _blocks(self, wanted: WantedPrompt) -> Iterator[tuple[int, int, TokenBlock]]:
        """(first position, tokens that are the prompt's, block) in order."""
        keys, at = wanted.keys, wanted.at
        above = self._names.root(wanted.namespace)
        start = 0
        for start, name in self._names.of(wanted.namespace, keys):
            if start + BLOCK > at:
                block = self._read(name)
                if block is None or self._num_same(block, keys[start : start + BLOCK]) < BLOCK:
                    break
                yield start, BLOCK, block
            above, start = name, start + BLOCK
        num, last = self._longest(above, keys[start : start + BLOCK])
        if last is not None and start + num > at:
            yield start, num, last

    def _longest(self, above: str, rest: Keys) -> tuple[int, TokenBlock | None]:
        """What begins as the prompt goes on, of the tail after a block and of the last block that
        followed it, with the number of tokens that are the prompt's."""
        found: list[tuple[int, TokenBlock | None]] = [(0, None)]
        name = tail_name(above)
        tail = self._read(name)
        if tail is not None:
            self.tails[name] = len(tail.tokens)
            found.append((self._num_same(tail, rest), tail))
        link = self._look(next_name(above))
        if link is not None and self._num_same(link, rest):
            followed = link.payload.tobytes().decode("ascii", "replace")
            block = self._read(followed) if followed.isalnum() else None
            found += [(self._num_same(block, rest), block)] if block is not None else []
        return max(found, key=lambda each: each[0])

    def _num_same(self, block: TokenBlock, keys: Keys) -> int:
        """Tokens with which a block and a prompt begin, computed by the same variants."""
        own = self._names.keys_of(block)
        num = min(len(own), len(keys))
        same = own[:num] == keys[:num]
        return num if same.all() else int(np.argmin(same))

    def _read(self, name: str) -> TokenBlock | None:
        block = self._look(name)
        if block is None or block.payload.nbytes != len(block.tokens) * self._bytes_per_token:
            return None
        return block

    def _look(self, name: str) -> TokenBlock | None:
        return self._writer.read(name) or self._store.read(name)
