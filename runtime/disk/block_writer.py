"""Writes blocks on a thread of its own, from a queue of at most so many bytes."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import replace

from radixlang.runtime.disk.block_store import BlockStore, TokenBlock
from radixlang.runtime.disk.buffers import Buffers

log = logging.getLogger("radixlang.runtime")
MAX_QUEUED_BYTES = 128 << 20
MAX_WAITED_BYTES = 8 << 20  # queued while `put` waits: their memory is then used again


class BlockWriter:
    """The queue of blocks to write, and its thread, which lives while there is something to write.

    A block that waits can be read. A full queue drops what is offered, so a slow disk
    costs hits and delays nobody; at the end `put(…, must=True)` waits for room instead.
    """

    def __init__(
        self, store: BlockStore, buffers: Buffers, max_bytes: int = MAX_QUEUED_BYTES
    ) -> None:
        self._store = store
        self._buffers = buffers
        self._max_bytes = max_bytes
        self._queue: OrderedDict[str, TokenBlock] = OrderedDict()
        self._num_bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.num_dropped = 0
        self.busy_s = 0.0  # processor seconds of the thread

    def has(self, name: str) -> bool:
        """Whether a block is not written yet, or is just being written."""
        with self._changed:
            return name in self._queue

    def read(self, name: str) -> TokenBlock | None:
        """A copy of such a block: its memory is used again once it is written."""
        with self._changed:
            found = self._queue.get(name)
            return None if found is None else replace(found, payload=found.payload.copy())

    def put(self, name: str, block: TokenBlock, *, must: bool = False) -> bool:
        """Queue a block, in place of one of the same name; False if it was dropped."""
        most = MAX_WAITED_BYTES if must else self._max_bytes
        with self._changed:
            while self._queue and self._num_bytes + block.num_bytes > most:
                if not must:
                    self.num_dropped += 1
                    return False
                self._changed.wait()
            self._remove(name)
            self._queue[name] = block
            self._num_bytes += block.num_bytes
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="radixlang-disk-writer", daemon=True
                )
                self._thread.start()
            return True

    def drain(self) -> None:
        """Wait until everything queued so far is written or has failed."""
        with self._changed:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._thread = None
                    return
                name, block = next(iter(self._queue.items()))
            begun = time.thread_time()
            try:
                self._store.write(name, block)
            except Exception:
                log.exception("a block could not be written to disk")
            self.busy_s += time.thread_time() - begun
            with self._changed:
                if self._queue.get(name) is block:
                    self._remove(name)
                    self._buffers.give(block.payload)
                self._changed.notify_all()

    def _remove(self, name: str) -> None:
        old = self._queue.pop(name, None)
        if old is not None:
            self._num_bytes -= old.num_bytes
