"""Holds sequences while their prompts are looked up on disk, ahead of the step that needs them.

A sequence is looked up when it is queued, as long as what is read ahead leaves most of the pool
alone; else when it is next to run. Others run meanwhile. Sequences that go on as one whose prompt
is being read wait for it and are looked up after it. A disk that does not answer costs a bounded
wait, and nothing is asked of it until it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from radixlang.runtime.cache.node import Keys, as_edge, num_common_tokens, walk
from radixlang.runtime.cache.radix_tree import Namespace, RadixNode
from radixlang.runtime.disk.block_names import BLOCK
from radixlang.runtime.disk.block_reader import FoundBlocks
from radixlang.runtime.disk.tier import DiskTier, is_kept
from radixlang.runtime.metrics.stats import Counters
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.sequence import TokenSequence

MAX_AHEAD_SHARE = 1 / 4  # of the pool: tokens of sequences that were read before they can run
MAX_WAIT_S = 2.0  # for a disk that does not answer
POLL_S = 0.05  # between looks at deadlines while only the disk is waited for

Post = Callable[[Callable[[], None]], None]
_Place = tuple[RadixNode, int, int]  # where a prompt leaves the tree: node, tokens of a child, key


@dataclass(slots=True, eq=False)
class _Read:
    """One prompt being read, and the sequences that wait for it, the one that asked first."""

    place: _Place
    namespace: Namespace
    keys: Keys
    limit: int
    waiting: list[TokenSequence] = field(default_factory=list)
    begun_s: float = field(default_factory=time.monotonic)


class ReadAhead:
    """Sequences whose prompts are being read.

    Args:
        post: lets the engine's thread call a function between two steps; from any thread.
        ready: queues a sequence again; the second argument tells whether it was next to run.
    """

    def __init__(
        self,
        disk: DiskTier,
        memory: Memory,
        counters: Counters,
        post: Post,
        ready: Callable[[TokenSequence, bool], None],
    ) -> None:
        self._disk = disk
        self._memory = memory
        self._counters = counters
        self._post = post
        self._ready = ready
        self._reads: dict[_Place, _Read] = {}
        self._held: dict[TokenSequence, bool] = {}  # and whether it was next to run
        self._looked: dict[TokenSequence, int] = {}  # and the tokens read ahead for it
        self._is_stuck = False

    def __len__(self) -> int:
        return len(self._held)

    def holds(self, sequence: TokenSequence) -> bool:
        """Whether a sequence waits for its prompt to be read."""
        return sequence in self._held

    def queue(self, sequence: TokenSequence) -> bool:
        """Look up a sequence that may have to wait; True if it is held until that is done."""
        most = self._memory.pool.num_slots * MAX_AHEAD_SHARE
        if sum(self._looked.values()) + sequence.num_tokens > most:
            return False
        return self._hold(sequence, is_next=False)

    def admit(self, sequence: TokenSequence) -> bool:
        """True if a sequence that is next to run is held; else it was looked up."""
        return sequence not in self._looked and self._hold(sequence, is_next=True)

    def drop(self, sequence: TokenSequence) -> bool:
        """Forget a sequence that runs, or will not; True if it was held."""
        self._looked.pop(sequence, None)
        if self._held.pop(sequence, None) is None:
            return False
        for read in self._reads.values():
            if sequence in read.waiting:
                read.waiting.remove(sequence)
        return True

    def give_up(self) -> None:
        """Let sequences run that have waited long for a disk that does not answer."""
        for place, read in list(self._reads.items()):
            if time.monotonic() - read.begun_s > MAX_WAIT_S:
                self._is_stuck = True
                del self._reads[place]
                for sequence in read.waiting:
                    self._release(sequence, 0)

    def _hold(self, sequence: TokenSequence, *, is_next: bool) -> bool:
        """Hold a sequence if a part of its prompt may be on disk."""
        if not self._seek(sequence):
            self._looked[sequence] = 0
            return False
        self._held[sequence] = is_next
        return True

    def _seek(self, sequence: TokenSequence) -> bool:
        """Ask for a sequence's prompt, or wait with one that goes on alike; False if there is
        nothing to ask for."""
        if self._is_stuck or not is_kept(sequence.namespace):
            return False
        keys, limit = sequence.keys, self._memory.num_wanted(sequence)
        root = self._memory.tree.root(sequence.namespace)
        found = walk(root, as_edge(keys[:limit]))
        at = found.num_tokens + found.part
        if at >= limit:
            return False
        place = (found.node, found.part, int(keys[at]))
        read = self._reads.get(place)
        if read is None:
            read = self._reads[place] = _Read(place, sequence.namespace, keys, limit)
            self._disk.ask(sequence.namespace, keys, at, lambda found: self._answer(read, found))
        read.waiting.append(sequence)
        return True

    def _answer(self, read: _Read, found: FoundBlocks) -> None:
        """On the reader's thread."""
        self._post(lambda: self._arrived(read, found))

    def _arrived(self, read: _Read, found: FoundBlocks) -> None:
        self._is_stuck = False
        if self._reads.get(read.place) is not read:
            return  # given up
        del self._reads[read.place]
        if not read.waiting:
            return
        num = self._disk.place(read.namespace, read.keys, read.limit, found)
        self._counters.num_disk_tokens += num
        stop = found.blocks[-1][0] + found.blocks[-1][1] if found.blocks else 0
        is_partial = found.is_partial and num > 0
        for sequence in read.waiting:
            is_done = not is_partial and _is_same_miss(sequence.keys, read.keys, stop)
            if is_done or not self._seek(sequence):
                self._release(sequence, num)

    def _release(self, sequence: TokenSequence, num_tokens: int) -> None:
        self._looked[sequence] = num_tokens
        self._ready(sequence, self._held.pop(sequence))


def _is_same_miss(keys: Keys, others: Keys, stop: int) -> bool:
    """Whether a prompt finds no more than another, for which a store had nothing from a position
    on: they are the same for one more block, or to the end."""
    same = num_common_tokens(as_edge(keys), as_edge(others))
    return same == len(keys) or same >= stop // BLOCK * BLOCK + BLOCK
