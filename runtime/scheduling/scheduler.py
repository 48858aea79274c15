"""Which sequences run in the next step, and how many tokens of each.

Decodes come first, then running prefills in the order of arrival, then waiting sequences in the
order of the queue. A step has a budget of tokens, so long prompts are prefilled in chunks, together
with decodes.

One leader prefills a prefix that is not cached. A sequence that would compute the same tokens waits
until the leader has inserted them into the tree. The test is exact and costs one lookup: two
prompts share more than the tree holds exactly if both leave it at the same node with the same next
token.

If memory runs out, cached prefixes are evicted, then branches at rest give up their leases, then
the youngest running sequences are retracted (their tokens stay cached while there is room, and
they resume later), and at last one request fails. The oldest always goes on, so nothing livelocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from radixlang.errors import PoolExhaustedError
from radixlang.runtime.cache.node import as_edge, num_common_tokens, walk
from radixlang.runtime.cache.pages.page_pool import PoolFull
from radixlang.runtime.cache.radix_tree import RadixNode
from radixlang.runtime.disk.tier import DiskTier
from radixlang.runtime.metrics.stats import Counters
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.read_ahead import Post, ReadAhead
from radixlang.runtime.scheduling.sequence import TokenIds, TokenSequence
from radixlang.runtime.scheduling.waiting_queue import WaitingQueue
from radixlang.runtime.speculative.draft_length import choose_lengths
from radixlang.runtime.speculative.drafts import NO_DRAFT

TAIL_RESERVE = 64  # most slots that a sequence reserves ahead, so that its tail is contiguous
MAX_AHEAD_SHARE = 1 / 256  # of the pool: the most that is evicted before it is needed
GROWTH_ROOM = 16  # tokens kept free for each running sequence before others are admitted


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one step."""

    max_batch_tokens: int
    max_running: int


class Scheduler:
    """Holds waiting and running sequences.

    Args:
        yield_lease: asks a branch at rest to give up its lease; False if there is none left.
        fail: fails a sequence's request; it calls `remove` for all sequences of the request.
    """

    def __init__(
        self,
        memory: Memory,
        waiting: WaitingQueue,
        limits: Limits,
        counters: Counters,
        *,
        yield_lease: Callable[[], bool],
        fail: Callable[[TokenSequence, BaseException], None],
    ) -> None:
        self.memory = memory
        self.waiting = waiting
        self.limits = limits
        self.running: list[TokenSequence] = []  # oldest first
        self.parked: dict[TokenSequence, TokenSequence] = {}  # follower to leader
        self._leaders: dict[tuple[RadixNode, int], TokenSequence] = {}
        self._counters = counters
        self._yield_lease = yield_lease
        self._fail = fail
        self.read_ahead: ReadAhead | None = None
        self._num_arrivals = 0
        pool = memory.pool
        most = min(TAIL_RESERVE // pool.page_size, int(pool.num_pages * MAX_AHEAD_SHARE))
        self._pages_ahead = max(1, most)

    @property
    def is_idle(self) -> bool:
        """True when nothing waits for a step or runs."""
        return not (self.running or self.parked or len(self.waiting))

    @property
    def num_waiting(self) -> int:
        """Sequences that do not run yet."""
        return len(self.waiting) + len(self.parked) + self.num_read

    @property
    def num_read(self) -> int:
        """Those of them whose prompts are being read from disk."""
        return 0 if self.read_ahead is None else len(self.read_ahead)

    def use_disk(self, disk: DiskTier, post: Post) -> None:
        """Look up prompts on disk before they run."""
        self.read_ahead = ReadAhead(disk, self.memory, self._counters, post, self._requeue)

    def give_up_reading(self) -> None:
        """Stop waiting for a disk that does not answer."""
        if self.read_ahead is not None:
            self.read_ahead.give_up()

    def _requeue(self, sequence: TokenSequence, is_next: bool) -> None:
        if is_next:
            self.waiting.push_front(sequence)
        else:
            self.waiting.push(sequence)

    def add(self, sequence: TokenSequence, *, first: bool = False) -> None:
        """Queue a new sequence, or (first) put it before all others."""
        self._num_arrivals += 1
        sequence.arrival = self._num_arrivals
        if first:
            self.waiting.push_front(sequence)
        elif self.read_ahead is None or not self.read_ahead.queue(sequence):
            self.waiting.push(sequence)

    def remove(self, sequence: TokenSequence) -> None:
        """Remove a sequence, waiting or running; its memory is not touched."""
        if self.read_ahead is not None and self.read_ahead.drop(sequence):
            return
        if sequence in self.parked:
            del self.parked.pop(sequence).followers[sequence]
        elif sequence.is_running:
            self._stop_running(sequence)
        else:
            self.waiting.remove(sequence)

    def next_batch(self) -> list[tuple[TokenSequence, int]]:
        """Sequences of the next step with the number of tokens each computes (0: only logits).

        Memory for all of them, and for their drafts, is reserved.
        """
        batch: dict[TokenSequence, int] = {}
        budget = self.limits.max_batch_tokens
        decoding: list[TokenSequence] = []
        prefilling: list[TokenSequence] = []
        for sequence in self.running:
            (prefilling if sequence.is_prefilling else decoding).append(sequence)
        for sequence in (*decoding, *prefilling):
            if budget > 0 and sequence.is_running and not sequence.is_held:
                budget -= self._schedule(sequence, budget, batch)
        self._admit(batch, budget)
        self._draft(batch)
        return list(batch.items())

    def committed(self, sequence: TokenSequence) -> None:
        """Wake the sequences that waited for tokens of this prompt, now in the tree."""
        if sequence.leader_key is not None:
            del self._leaders[sequence.leader_key]
            sequence.leader_key = None
        if sequence.is_prefilling:
            self._lead(sequence)
        self._wake(sequence, sequence.num_committed if sequence.is_prefilling else None)

    def retract(self, sequence: TokenSequence) -> None:
        """Preempt a running sequence: release its memory; it resumes later where it was."""
        self._counters.num_retracted += 1
        self.memory.events.add("retract", sequence.num_computed, sequence.holder)
        self._stop_running(sequence)
        self.memory.commit(sequence, sequence.num_computed)
        self.memory.detach(sequence)
        self.waiting.push_front(sequence)

    def restart(self, sequence: TokenSequence) -> None:
        """Release a running sequence's memory, to compute all its tokens again."""
        self._stop_running(sequence)
        self.memory.detach(sequence)
        self.waiting.push_front(sequence)

    # ---- one step

    def _schedule(
        self, sequence: TokenSequence, budget: int, batch: dict[TokenSequence, int]
    ) -> int:
        """Put a running sequence into the batch; returns the tokens it takes."""
        if sequence.is_prefilling:
            self.memory.follow(sequence)
            self._lead(sequence)
        num_new = min(sequence.num_pending, budget)
        if sequence.num_unwritten >= num_new or self._make_room(sequence, num_new, batch):
            batch[sequence] = num_new
            return num_new
        return 0

    def _make_room(
        self, sequence: TokenSequence, num_new: int, batch: dict[TokenSequence, int]
    ) -> bool:
        """Evict or retract until memory is reserved; False when the sequence itself yields."""
        to_come = min(TAIL_RESERVE, sequence.job.num_to_write)
        ahead = sequence.num_pending - num_new + to_come
        while True:
            try:
                self.memory.reserve(sequence, num_new, ahead)
            except PoolFull as full:
                if self._relieve(full.needed - full.free, sequence, batch):
                    continue
                victim = self._victim(sequence)
                if victim is None:
                    self._fail(sequence, self._exhausted(sequence, num_new))
                    return False
                batch.pop(victim, None)
                self.retract(victim)
                if victim is sequence:
                    return False
            else:
                return True

    def _relieve(
        self, num_pages: int, sequence: TokenSequence, batch: dict[TokenSequence, int]
    ) -> bool:
        """Free pages without stopping a running sequence; True if there are more free ones now.

        Evicts a little more than is needed, for the next steps; others may keep as many slots
        reserved ahead until nothing else is left.
        """
        ahead = self._pages_ahead
        return (
            self._trim(sequence, batch, keep=ahead * self.memory.pool.page_size)
            or self._evict(max(num_pages, ahead))
            or self._trim(sequence, batch, keep=0)
        )

    def _trim(self, sequence: TokenSequence, batch: dict[TokenSequence, int], keep: int) -> bool:
        """Release what another sequence has reserved ahead beyond `keep` tokens."""
        return any(
            self.memory.trim(other, batch.get(other, 0) + keep)
            for other in self.running
            if other is not sequence
        )

    def _evict(self, num_pages: int) -> bool:
        while not self.memory.free(num_pages):
            if not self._yield_lease():
                return False
        return True

    def _victim(self, sequence: TokenSequence) -> TokenSequence | None:
        """The sequence to preempt for this one: the youngest. If that is this one, and all others
        are held, a held one of another request; None if there is none.
        """
        youngest = max(self.running, key=lambda each: each.arrival)
        others = [each for each in self.running if each is not sequence]
        if youngest is not sequence or not all(each.is_held for each in others):
            return youngest
        return self._held_elsewhere(sequence)

    def _held_elsewhere(self, sequence: TokenSequence) -> TokenSequence | None:
        """The youngest held sequence of another request."""
        held = (each for each in self.running if each.is_held and each.job is not sequence.job)
        return max(held, key=lambda each: each.arrival, default=None)

    def _exhausted(self, sequence: TokenSequence, num_new: int) -> PoolExhaustedError:
        pool = self.memory.pool
        return PoolExhaustedError(
            f"the KV pool of {pool.num_slots} tokens cannot hold this request: it has "
            f"{sequence.num_computed} tokens and needs {num_new} more, {pool.num_free_pages} pages "
            f"are free and {self.memory.tree.num_protected_tokens} cached tokens are in use. "
            "Make the pool larger (kv_bytes= or num_pages=), or the prompt shorter"
        )

    def _draft(self, batch: dict[TokenSequence, int]) -> None:
        """Draft where a token is to be sampled, in slots that are free anyway.

        What is left of the budget bounds it: a step of more rows takes disproportionately longer.
        """
        decoding = [each for each in batch if not each.is_prefilling]
        drafts: list[TokenIds] = []
        rates: list[float] = []
        for sequence in decoding:
            sequence.draft = draft = NO_DRAFT
            rate = 0.0
            num_new = batch[sequence]
            if 0 < num_new == sequence.num_pending:
                draft, rate = sequence.job.draft()
            drafts.append(draft[: max(0, sequence.num_unwritten - num_new)])
            rates.append(rate)
        longest = max(map(len, drafts), default=0)
        if not longest:
            return
        num_rows = sum(batch.values())
        budget = self.limits.max_batch_tokens - num_rows
        lengths = choose_lengths(rates, longest, is_ragged=num_rows > len(batch))
        for sequence, draft, length in zip(decoding, drafts, lengths, strict=True):
            sequence.draft = draft[: min(length, budget)]
            budget -= len(sequence.draft)

    # ---- admission

    def _admit(self, batch: dict[TokenSequence, int], budget: int) -> None:
        num_sampling = sum(each.job.samples for each in self.running)
        while budget > 0 and (sequence := self._next_waiting()) is not None:
            is_full = sequence.job.samples and num_sampling >= self.limits.max_running
            if is_full and not sequence.is_awaited:
                self.waiting.push_front(sequence)
                return
            if self._park(sequence):
                continue
            if self.read_ahead is not None and self.read_ahead.admit(sequence):
                continue
            self.memory.attach(sequence)
            while not self._fits(sequence) and self._clear_for(sequence):
                pass
            if not self._fits(sequence):
                self.memory.detach(sequence)
                self.waiting.push_front(sequence)
                if self.running and not (sequence.is_awaited and self._all_held):
                    return
                self._fail(sequence, self._exhausted(sequence, sequence.num_tokens))
                continue
            self.memory.count_cached(sequence)
            self.memory.events.add("admit", sequence.num_computed, sequence.holder)
            self._insert_running(sequence)
            num_sampling += sequence.job.samples
            budget -= self._schedule(sequence, budget, batch)
            if not sequence.is_running:
                return  # the reservation failed

    def _clear_for(self, sequence: TokenSequence) -> bool:
        """Take memory from a branch at rest, or, if all that run are held, from one of these."""
        if self._yield_lease():
            return True
        held = self._held_elsewhere(sequence) if sequence.is_awaited and self._all_held else None
        if held is not None:
            self.retract(held)
        return held is not None

    def _next_waiting(self) -> TokenSequence | None:
        """The next of the queue; before it one whose partner runs, and can only wait for it."""
        for each in self.running:
            other = each.partner
            if other is not None and not (other.is_running or self._is_away(other)):
                self.waiting.remove(other)
                return other
        return self.waiting.pop()

    def _is_away(self, sequence: TokenSequence) -> bool:
        """Whether a sequence waits elsewhere than in the queue."""
        is_read = self.read_ahead is not None and self.read_ahead.holds(sequence)
        return is_read or sequence in self.parked

    @property
    def _all_held(self) -> bool:
        """Whether nothing that runs goes on by itself."""
        return all(each.is_held for each in self.running)

    def _insert_running(self, sequence: TokenSequence) -> None:
        """Keep the running list in order of arrival."""
        place = len(self.running)
        while place and self.running[place - 1].arrival > sequence.arrival:
            place -= 1
        if self.read_ahead is not None:
            self.read_ahead.drop(sequence)
        self.running.insert(place, sequence)
        sequence.is_running = True

    def _stop_running(self, sequence: TokenSequence) -> None:
        self.running.remove(sequence)
        sequence.is_running = False
        self._resign(sequence)

    def _fits(self, sequence: TokenSequence) -> bool:
        """Whether its pending tokens fit together with what the running ones are about to take."""
        pool, tree = self.memory.pool, self.memory.tree
        size = pool.page_size
        room = (pool.num_free_pages + tree.num_evictable_pages) * size
        room += sum(each.num_unwritten // size * size for each in self.running)
        must = sequence.is_awaited and self._all_held  # nothing else can go on
        growth = GROWTH_ROOM if self.running and not must else 0
        planned = sum(each.num_pending + growth for each in self.running)
        own = sequence.num_pending + growth
        return own + planned <= room

    # ---- leaders

    def _lead(self, sequence: TokenSequence) -> None:
        """Make the sequence a leader of the tokens that it is about to compute."""
        if sequence.leader_key is not None:
            del self._leaders[sequence.leader_key]
        at = sequence.num_committed
        key = (sequence.node, int(sequence.keys_of(at, at + 1)[0]))
        sequence.leader_key = key if key not in self._leaders else None
        self._leaders.setdefault(key, sequence)

    def _park(self, sequence: TokenSequence) -> bool:
        """Let the sequence wait for a leader of tokens of its prompt, if there is one."""
        tree = self.memory.tree
        keys = sequence.keys
        found = walk(tree.root(sequence.namespace), as_edge(keys))
        if found.part or found.num_tokens >= sequence.num_tokens:
            return False
        key = (found.node, int(keys[found.num_tokens]))
        leader = self._leaders.get(key)
        if leader is None:
            return False
        wake_at = self._num_useful(sequence, leader)
        if wake_at <= found.num_tokens:
            return False
        self.parked[sequence] = leader
        leader.followers[sequence] = wake_at
        return True

    def _num_useful(self, sequence: TokenSequence, leader: TokenSequence) -> int:
        """Tokens of the leader's prompt that the sequence can take from the cache."""
        prompt = leader.keys_of(0, leader.num_prompt)
        shared = num_common_tokens(as_edge(prompt), as_edge(sequence.keys))
        same = shared == len(prompt) == sequence.num_tokens
        both = sequence.job.samples and leader.job.samples and leader.num_tokens == len(prompt)
        return shared if same and both else min(shared, sequence.first_logit)

    def _wake(self, leader: TokenSequence, num_committed: int | None) -> None:
        """Wake followers whose part is in the tree, or (None) all of them, as no more will come."""
        ready = [
            follower
            for follower, wake_at in leader.followers.items()
            if num_committed is None or wake_at <= num_committed
        ]
        for follower in reversed(ready):
            del leader.followers[follower]
            del self.parked[follower]
            self.waiting.push_front(follower)

    def _resign(self, sequence: TokenSequence) -> None:
        if sequence.leader_key is not None:
            del self._leaders[sequence.leader_key]
            sequence.leader_key = None
        self._wake(sequence, None)
