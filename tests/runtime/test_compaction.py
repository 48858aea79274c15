"""Compaction makes hot paths contiguous, moves their numbers along, and leaves running steps be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlang.runtime.cache.compaction import Compactor, fragmentation, num_runs
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree
from radixlang.runtime.diagnostics.invariants import audit

PAGE_SIZES = [1, 4]


class Grown:
    """Four branches decoded side by side, token by token, below a prefix of eight."""

    def __init__(self, page_size: int = 1, num_slots: int = 256) -> None:
        self.tree = RadixTree(PagePool(num_slots // page_size, page_size))
        self.cache = KVCache(num_slots, 1, 1, 2)
        prefix = self.write(self.tree.root(""), list(range(8)))
        self.leases = [self.tree.lease(prefix, f"branch {i}") for i in range(4)]
        for step in range(10):
            for i, lease in enumerate(self.leases):
                lease.move(self.write(lease.node, [100 * (i + 1) + step]))

    def write(self, parent: RadixNode, tokens: list[int]) -> RadixNode:
        slots = self.tree.pool.alloc(len(tokens))
        for token, slot in zip(tokens, slots.tolist(), strict=True):
            self.cache[0].k[slot] = token
            self.cache[0].v[slot] = -token
        return self.tree.insert(parent, tokens, slots).node

    def check(self) -> None:
        for node in self.tree.nodes():
            index = torch.from_numpy(node.slots.astype(np.int64))
            expected = torch.from_numpy(node.key.astype(np.float32))
            assert torch.equal(self.cache[0].k[index][:, 0, 0], expected)
            assert torch.equal(self.cache[0].v[index][:, 0, 0], -expected)
        assert not audit(self.tree, self.tree.pool)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_paths_become_contiguous_and_keep_their_numbers(page_size: int) -> None:
    grown = Grown(page_size)
    before = [grown.tree.tokens(lease.node).tolist() for lease in grown.leases]
    version = grown.tree.layout_version
    moved = Compactor(grown.tree, grown.cache).compact()
    assert moved
    assert grown.tree.layout_version > version
    assert fragmentation(grown.tree) == 0
    for lease, tokens in zip(grown.leases, before, strict=True):
        assert grown.tree.tokens(lease.node).tolist() == tokens
        assert num_runs(grown.tree.slots(lease.node)[8:]) == 1
    grown.check()


def test_the_hottest_path_is_one_run_from_the_root() -> None:
    grown = Grown()
    hot = grown.tree.tokens(grown.leases[2].node)
    for _ in range(5):
        grown.tree.match("", hot)
    Compactor(grown.tree, grown.cache).compact()
    assert num_runs(grown.tree.slots(grown.leases[2].node)) == 1


def test_nodes_in_flight_do_not_move() -> None:
    grown = Grown()
    reading = set(grown.tree.path(grown.leases[1].node))
    before = {node: node.slots.copy() for node in reading}
    moved = Compactor(grown.tree, grown.cache).compact(in_flight=reading)
    assert moved
    assert not reading & set(moved)
    assert all(np.array_equal(node.slots, slots) for node, slots in before.items())
    grown.check()


def test_without_a_free_run_nothing_moves() -> None:
    grown = Grown(num_slots=56)
    before = grown.tree.layout_version
    assert Compactor(grown.tree, grown.cache).compact() == []
    assert grown.tree.layout_version == before
    grown.check()


def test_a_call_copies_no_more_than_its_budget() -> None:
    grown = Grown()
    compactor = Compactor(grown.tree, grown.cache, max_tokens=25)
    moved = compactor.compact()
    assert 0 < compactor.num_moved_tokens == sum(node.length for node in moved) <= 25
    while compactor.compact():
        grown.check()
    assert compactor.num_moved_tokens >= 40


def test_compaction_is_due_after_inserts_or_fragmentation() -> None:
    grown = Grown()
    assert fragmentation(grown.tree) > 0.25
    assert Compactor(grown.tree, grown.cache, every_inserts=41).is_due()
    assert Compactor(grown.tree, grown.cache, every_inserts=640).is_due()  # 41 ≥ 640/16: looked at
    assert not Compactor(grown.tree, grown.cache, every_inserts=6400).is_due()
    calm = Compactor(grown.tree, grown.cache, every_inserts=640, max_fragmentation=1.0)
    assert not calm.is_due()
    done = Compactor(grown.tree, grown.cache, every_inserts=41)
    done.compact()
    assert not done.is_due()


def test_an_empty_tree_is_not_fragmented() -> None:
    tree = RadixTree(PagePool(8))
    assert fragmentation(tree) == 0
    assert Compactor(tree, KVCache(8, 1, 1, 2)).compact() == []
    assert num_runs(np.empty(0, np.int32)) == 0
