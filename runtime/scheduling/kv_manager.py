"""How sequences hold KV memory: attach to the tree, reserve, commit and release.

Only here do slots change owners between the pool, private tails and the tree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
from torch import Tensor

from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.node import as_edge, walk
from radixlang.runtime.cache.pages.page_pool import NO_SLOTS, PagePool
from radixlang.runtime.cache.quantized_tier import ColdTier
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree
from radixlang.runtime.disk.tier import DiskTier
from radixlang.runtime.metrics.events import Events
from radixlang.runtime.metrics.stats import Counters
from radixlang.runtime.process.malloc import give_back, release_code
from radixlang.runtime.scheduling.sequence import TokenSequence

MAX_PROMPT_ENDS = 1024


class PromptEnds:
    """The model's output at the last tokens of recent prompts, [1 or 2, hidden_size] each.

    Keys and values give no logits; with these outputs, a prompt that is cached whole needs no
    forward pass, and many samples of one prompt share its computation to the last token.
    """

    def __init__(self, max_entries: int = MAX_PROMPT_ENDS) -> None:
        self._rows: OrderedDict[RadixNode, tuple[int, Tensor]] = OrderedDict()
        self._max_entries = max_entries

    def put(self, node: RadixNode, hidden: Tensor) -> None:
        """Remember the rows of the tokens that end the node."""
        self._rows[node] = (node.end, hidden)
        self._rows.move_to_end(node)
        if len(self._rows) > self._max_entries:
            self._rows.popitem(last=False)

    def get(self, node: RadixNode) -> Tensor | None:
        """The rows, or None if the node's end has changed."""
        entry = self._rows.get(node)
        if entry is None or entry[0] != node.end or not node.is_attached:
            return None
        self._rows.move_to_end(node)
        return entry[1]

    def clear(self) -> None:
        """Forget all of them (after a change of weights)."""
        self._rows.clear()


class Memory:
    """The tree, its pool, and the tensors, as sequences use them.

    With a `cold` tier, nodes move to 8 bits before any are evicted.
    """

    def __init__(
        self,
        pool: PagePool,
        tree: RadixTree,
        cache: KVCache,
        counters: Counters,
        cold: ColdTier | None = None,
    ) -> None:
        self.pool = pool
        self.tree = tree
        self.cache = cache
        self.cold = cold
        self.disk: DiskTier | None = None
        self.ends = PromptEnds()
        self.events = Events()
        self.events.count("evict", lambda: tree.num_evicted_tokens)
        if cold is not None:
            self.events.count("quantize", lambda: cold.num_quantized_tokens)
        self._counters = counters

    def attach(self, sequence: TokenSequence) -> None:
        """Lease the longest cached prefix that does not cover the needed logits."""
        assert sequence.lease is None
        limit = self.num_wanted(sequence)
        match = self.tree.match(sequence.namespace, sequence.keys_of(0, limit))
        sequence.hold(self.tree.lease(match.node, sequence.holder))
        sequence.num_computed = match.length
        self.tree.forget_next_uses(match.node)

    def num_wanted(self, sequence: TokenSequence) -> int:
        """Tokens of a sequence that may be taken from the cache, because no logits of theirs are
        needed, or because those are remembered."""
        return sequence.num_tokens if self._end_of(sequence) is not None else sequence.first_logit

    def count_cached(self, sequence: TokenSequence) -> None:
        """Count the cached tokens, once it is certain that the sequence will run."""
        self._count(sequence, sequence.num_computed, is_cached=True)

    def detach(self, sequence: TokenSequence) -> None:
        """Release everything the sequence holds; its tail is dropped."""
        self.pool.release(sequence.tail)
        sequence.tail = NO_SLOTS
        if sequence.lease is not None:
            sequence.lease.release()
        sequence.hold(None)
        sequence.num_computed = sequence.held_at = 0

    def end_rows(self, sequence: TokenSequence) -> Tensor | None:
        """The remembered output from `first_logit` on, if no token of the prompt is pending."""
        rows = self.ends.get(sequence.node) if sequence.num_pending == 0 else None
        return None if rows is None else rows[sequence.first_logit - sequence.num_tokens :]

    def follow(self, sequence: TokenSequence) -> None:
        """Extend the leased prefix by tokens that others have inserted into the tree meanwhile."""
        start = sequence.num_committed
        if sequence.num_written or start >= sequence.first_logit:
            return
        if as_edge(sequence.keys_of(start, start + 1)) in sequence.node.children:
            match = self.tree.match(sequence.namespace, sequence.keys_of(0, sequence.first_logit))
            sequence.move(match.node)
            sequence.num_computed = match.length
            self._count(sequence, match.length, is_cached=True)

    def retreat(self, sequence: TokenSequence, num_tokens: int) -> None:
        """Shorten the leased prefix to num_tokens."""
        if sequence.num_committed > num_tokens and sequence.lease is not None:
            match = self.tree.match(sequence.namespace, sequence.keys_of(0, num_tokens))
            sequence.move(match.node)
            sequence.num_computed = match.length

    def reserve(self, sequence: TokenSequence, num_new: int, ahead: int) -> None:
        """Reserve slots for num_new tokens, and `ahead` more if they are free without evicting.

        Raises:
            PoolFull: there is no room for num_new; nothing was changed.
        """
        missing = sequence.num_written + num_new - len(sequence.tail)
        if missing <= 0:
            return
        last = self._last_slot(sequence)
        spare = self.pool.num_free_pages - self.pool.num_pages_for(missing, last)
        extra = min(ahead, max(0, spare) * self.pool.page_size)
        slots = self.pool.alloc(missing + extra, after_slot=last, holder=sequence.holder)
        sequence.tail = slots if not len(sequence.tail) else np.concatenate((sequence.tail, slots))

    def wrote(self, sequence: TokenSequence, num_new: int) -> None:
        """Record that keys and values of the next num_new tokens are computed."""
        start = sequence.num_computed
        end = sequence.num_computed = start + num_new
        if start < sequence.reached:
            self._counters.num_recomputed_tokens += min(end, sequence.reached) - start
        if end > sequence.reached:
            sequence.reached = end
        if sequence.counted < sequence.num_prompt:
            self._count(sequence, end, is_cached=False)

    def commit(self, sequence: TokenSequence, end: int) -> None:
        """Insert computed tokens up to position `end` into the tree and read them from there."""
        start = sequence.num_committed
        num = end - start
        if num <= 0:
            return
        keys, slots = sequence.keys_of(start, end), sequence.tail[:num]
        sequence.tail = sequence.tail[num:]
        inserted = self.tree.insert(sequence.node, keys, slots)
        sequence.move(inserted.node)
        self.events.add("insert", inserted.num_inserted, sequence.holder)

    def trim(self, sequence: TokenSequence, num_new: int = 0) -> int:
        """Release slots reserved beyond the next num_new tokens; returns how many."""
        keep = sequence.num_written + num_new
        spare = sequence.tail[keep:]
        if len(spare):
            self.pool.release(spare)
            sequence.tail = sequence.tail[:keep]
        return len(spare)

    def free(self, num_pages: int) -> int:
        """Free pages of unleased nodes, by quantising, then by evicting; returns how many."""
        if self.cold is not None and (num_freed := self.cold.make_room(num_pages)):
            return num_freed
        return self.tree.evict(num_pages)

    def give_back(self) -> None:
        """Return free memory to the system: free pages' keys and values, free heap memory, and
        libraries' code pages (code that runs again is mapped again).

        Call it between steps only, on the thread that runs them.
        """
        self.cache.give_back(self.pool.free_runs())
        give_back()
        release_code()

    def use_disk(self, disk: DiskTier) -> None:
        """Write what is evicted to a disk tier."""
        self.disk = disk
        self.tree.before_eviction = disk.save

    def save_to_disk(self) -> None:
        """Write what is cached to the disk tier, if there is one, and end its threads."""
        if self.disk is not None:
            self.disk.close()

    def close(self) -> None:
        """Release keys, values and remembered outputs, whoever still has this object."""
        self.ends.clear()
        self.cache.free()

    def held_bytes(self, sequences: Iterable[TokenSequence]) -> int:
        """Bytes of the pages in use, without slots reserved ahead."""
        size = self.pool.page_size
        held = (self.pool.num_pages - self.pool.num_free_pages) * size
        held -= sum(each.num_unwritten // size * size for each in sequences)
        return held * self.cache.bytes_per_token + self.num_cold * self.cache.cold_bytes_per_token

    @property
    def num_cold(self) -> int:
        """Tokens held in 8 bits."""
        cold_pool = self.tree.cold_pool
        return 0 if cold_pool is None else cold_pool.num_pages - cold_pool.num_free_pages

    @property
    def total_bytes(self) -> int:
        """Bytes of both tiers, used or not."""
        cache = self.cache
        cold_bytes = cache.num_cold_slots * cache.cold_bytes_per_token
        return self.pool.num_slots * cache.bytes_per_token + cold_bytes

    def _end_of(self, sequence: TokenSequence) -> Tensor | None:
        """The remembered output of a prompt that is cached whole."""
        if not sequence.job.samples or sequence.num_tokens > sequence.num_prompt:
            return None
        root = self.tree.root(sequence.namespace)
        found = walk(root, as_edge(sequence.keys))
        if found.part or found.num_tokens != sequence.num_tokens:
            return None
        rows = self.ends.get(found.node)
        num_needed = sequence.num_tokens - sequence.first_logit
        return rows if rows is not None and len(rows) >= num_needed else None

    def _last_slot(self, sequence: TokenSequence) -> int | None:
        if len(sequence.tail):
            return int(sequence.tail[-1])
        slots = sequence.node.slots
        return int(slots[-1]) if len(slots) and not sequence.node.quantized else None

    def _count(self, sequence: TokenSequence, upto: int, *, is_cached: bool) -> None:
        """Count prompt tokens up to a position, each once for a sequence."""
        num = min(upto, sequence.num_prompt) - sequence.counted
        if num <= 0:
            return
        sequence.counted += num
        job = sequence.job
        if is_cached:
            self._counters.num_cached_tokens += num
            job.num_cached += num
        else:
            self._counters.num_computed_tokens += num
            job.num_computed += num
