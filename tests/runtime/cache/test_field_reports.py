"""Faults that caches of the field had, each as the behaviour that is right.

The report is named beside each test; what concerns the scheduler is tested with the engine.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlang.errors import OwnershipError
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.pages.page_pool import PagePool, PoolFull, Slots
from radixlang.runtime.cache.radix_tree import Namespace, RadixTree
from radixlang.runtime.diagnostics.invariants import audit, idle_is_empty

PROMPT = list(range(100, 116))


class Engine:
    """The least of an engine: branches that compute, commit and read their page tables."""

    def __init__(self, num_slots: int = 128, page_size: int = 1) -> None:
        self.pool = PagePool(num_slots // page_size, page_size, track_holders=True)
        self.tree = RadixTree(self.pool)
        self.cache = KVCache(num_slots, 1, 1, 2)

    def prefill(self, lease: Lease, tokens: list[int]) -> Slots:
        slots = self.pool.alloc(len(tokens), holder=lease.holder)
        values = torch.tensor(tokens, dtype=torch.float32).view(1, 1, -1, 1, 1)
        self.cache.write(slots, values.expand(1, 2, -1, 1, 2))
        return slots

    def start(self, tokens: list[int], holder: str) -> tuple[Lease, Slots]:
        match = self.tree.match("", tokens[:-1])
        lease = self.tree.lease(match.node, holder)
        return lease, self.prefill(lease, tokens[match.length :])

    def read(self, slots: Slots) -> list[float]:
        return self.cache.read(slots)[0, 0, :, 0, 0].tolist()

    def poison_free_slots(self) -> None:
        every = np.arange(self.pool.num_slots, dtype=np.int32)
        self.cache.poison(every[~self.pool.is_owned(every)])

    def check(self, **private: Slots) -> None:
        assert not audit(self.tree, self.pool, private)


@pytest.mark.parametrize("page_size", [1, 8])
def test_identical_prompts_at_once_read_live_slots_after_duplicates_are_freed(
    page_size: int,
) -> None:
    """mini-sglang#142: freed duplicates stayed in a page table."""
    engine = Engine(page_size=page_size)
    started = [engine.start(PROMPT, f"branch {i}") for i in range(4)]
    for lease, slots in started:
        lease.move(engine.tree.insert(lease.node, PROMPT, slots).node)
    engine.poison_free_slots()
    for lease, _ in started:
        assert engine.read(engine.tree.slots(lease.node)) == PROMPT
        lease.release()
    assert engine.tree.num_cached_tokens == len(PROMPT)
    engine.check()


def test_an_abort_frees_once() -> None:
    """mini-sglang#111, sglang#11970: an aborted request's pages were freed twice."""
    engine = Engine()
    lease, slots = engine.start(PROMPT, "branch 1")
    engine.pool.release(slots)
    lease.release()
    with pytest.raises(OwnershipError):
        engine.pool.release(slots)
    with pytest.raises(OwnershipError):
        lease.release()
    assert engine.pool.num_free_pages == engine.pool.num_pages
    engine.check()


def test_a_retract_at_every_step_leaks_nothing() -> None:
    """sglang#11981, #38355: retracting leaked slots or corrupted the prompt."""
    engine = Engine()
    done: list[int] = []
    for end in range(2, len(PROMPT) + 1):
        lease, slots = engine.start(PROMPT[:end], f"try {end}")
        engine.pool.release(slots[1:])
        first = lease.node.end
        lease.move(engine.tree.insert(lease.node, PROMPT[first : first + 1], slots[:1]).node)
        done.append(lease.node.end)
        lease.release()
        engine.check()
    engine.poison_free_slots()
    assert done == list(range(1, len(PROMPT)))
    assert engine.read(engine.tree.slots(engine.tree.match("", PROMPT).node)) == PROMPT[:-1]
    assert not idle_is_empty(engine.tree, engine.pool, {})


def test_only_tokens_that_are_final_enter_the_tree() -> None:
    """sglang#35270: speculative tokens beyond the accepted ones were inserted and owned twice."""
    engine = Engine()
    lease, slots = engine.start([*PROMPT, 1, 2, 3], "branch 1")
    accepted = len(PROMPT) + 1
    lease.move(engine.tree.insert(lease.node, [*PROMPT, 1], slots[:accepted]).node)
    engine.check(rejected=slots[accepted:])
    engine.pool.release(slots[accepted:])
    engine.check()
    assert engine.tree.peek("", [*PROMPT, 1, 2]) == accepted
    lease.release()


def test_cold_siblings_insert_unique_tokens_once() -> None:
    """sglang#2442: of N cold siblings every one kept its own copy of the shared prefix."""
    engine = Engine(num_slots=1024)
    started = [engine.start([*PROMPT, 1000 + i, 0], f"branch {i}") for i in range(22)]
    for i, (lease, slots) in enumerate(started):
        lease.move(engine.tree.insert(lease.node, [*PROMPT, 1000 + i, 0], slots).node)
    assert engine.tree.num_cached_tokens == len(PROMPT) + 2 * 22
    assert engine.pool.num_pages - engine.pool.num_free_pages == len(PROMPT) + 2 * 22
    for lease, _ in started:
        lease.release()


@pytest.mark.parametrize("at", [0, 1, 7, 14, 15])
def test_prompts_that_differ_in_one_token_match_up_to_it(at: int) -> None:
    """sglang#2151: a truncated hash collided; here every token is compared."""
    engine = Engine()
    lease, slots = engine.start(PROMPT, "branch 1")
    lease.move(engine.tree.insert(lease.node, PROMPT, slots).node)
    other = [*PROMPT]
    other[at] += 1 << 24  # equal in all lower bytes
    assert engine.tree.peek("", other) == at
    lease.release()


def test_weights_swapped_mid_run_never_meet_old_keys_and_values() -> None:
    """lmdeploy#4917, AReaL#140: stale KV was matched after an update of the weights."""
    engine = Engine()
    old, new = Namespace(weights_version=1), Namespace(weights_version=2)
    running = engine.tree.lease(engine.tree.root(old), "old request")
    node = engine.tree.insert(running.node, PROMPT, engine.pool.alloc(len(PROMPT))).node
    running.move(node)
    engine.tree.retire(old)
    assert engine.tree.peek(new, PROMPT) == 0
    assert engine.tree.peek(old, PROMPT) == len(PROMPT)  # the running request keeps its own
    running.release()
    assert engine.pool.num_free_pages == engine.pool.num_pages
    engine.check()


def test_a_failed_admission_leaves_tree_and_pool_as_they_were() -> None:
    """sglang#19881: running out of memory took the scheduler down with the last request."""
    engine = Engine(num_slots=16)
    lease, slots = engine.start(PROMPT, "branch 1")
    lease.move(engine.tree.insert(lease.node, PROMPT, slots).node)
    with pytest.raises(PoolFull, match="0 free pages and 4 are needed"):
        engine.pool.alloc(4)
    assert engine.tree.evict(4) == 0  # all of it is leased
    engine.check()
    assert engine.tree.peek("", PROMPT) == len(PROMPT)
    lease.release()


def test_a_request_longer_than_all_that_can_be_evicted_evicts_only_what_is_there() -> None:
    """mllm#656: the evictable count went negative."""
    engine = Engine(num_slots=32)
    lease, slots = engine.start(PROMPT, "branch 1")
    lease.move(engine.tree.insert(lease.node, PROMPT, slots).node)
    root = engine.tree.root("")
    engine.tree.insert(root, [1, 2, 3], engine.pool.alloc(3))
    for _ in range(3):
        engine.tree.evict(1000)
        assert engine.tree.num_evictable_pages == engine.tree.num_evictable_tokens == 0
    lease.release()
    assert engine.tree.num_evictable_pages == len(PROMPT)
    engine.check()
