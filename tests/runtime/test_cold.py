"""Cold nodes in 8 bits: when, in which order, how exactly, and never for exact requests."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlang.errors import ParameterError
from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.runtime.cache.kv_cache import KVCache, quantize_tokens
from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.quantized_tier import ColdTier
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree
from radixlang.runtime.diagnostics.invariants import audit

HEADS, DIM = 2, 16


class Store:
    """A tree with both tiers, random numbers in its slots, and a clock that is set by hand."""

    def __init__(self, num_slots: int = 64, num_cold: int = 64, idle_s: float = 10) -> None:
        self.tree = RadixTree(PagePool(num_slots), cold_pool=PagePool(num_cold))
        self.cache = KVCache(num_slots, 1, HEADS, DIM, num_cold_slots=num_cold)
        self.now = 0.0
        self.tier = ColdTier(self.tree, self.cache, idle_s=idle_s, clock=lambda: self.now)
        self.random = torch.Generator().manual_seed(0)

    def put(self, tokens: list[int], *, exact: bool = False) -> RadixNode:
        match = self.tree.match("", tokens, exact=exact)
        new = tokens[match.length :]
        slots = self.tree.pool.alloc(len(new))
        shape = (1, 2, len(new), HEADS, DIM)
        self.cache.write(slots, torch.randn(shape, generator=self.random))
        return self.tree.insert(match.node, new, slots, exact=exact).node

    def audit(self) -> None:
        assert not audit(self.tree, self.tree.pool)


def test_idle_nodes_are_quantised_after_their_time() -> None:
    store = Store()
    old = store.put([1, 2, 3])
    assert store.tier.quantize_idle() == 0
    store.now = 6
    young = store.put([4, 5])
    assert store.tier.quantize_idle() == 0
    store.now = 10
    assert store.tier.quantize_idle() == 3
    assert (old.quantized, young.quantized) == (True, False)
    assert store.tree.pool.num_free_pages == 62
    assert store.tree.peek("", [1, 2, 3]) == 3
    store.audit()
    store.now = 17
    assert store.tier.quantize_idle() == 2
    store.audit()


def test_leased_nodes_stay_exact() -> None:
    store = Store()
    lease = store.tree.lease(store.put([1, 2, 3]))
    store.tier.quantize_idle()
    store.now = 100
    assert store.tier.quantize_idle() == 0
    assert not store.tier.quantize(lease.node)
    assert store.tier.make_room(1) == 0


def test_under_pressure_the_next_to_be_evicted_is_quantised_instead() -> None:
    store = Store()
    for start in (10, 20, 30):
        store.put([start, start + 1])
    assert store.tier.make_room(3) == 4
    assert [store.tree.match("", [s, s + 1]).node.quantized for s in (10, 20, 30)] == [1, 1, 0]
    assert store.tree.num_cached_tokens == 6
    store.audit()


def test_inner_nodes_follow_when_no_exact_leaf_is_left() -> None:
    store = Store()
    store.put([1, 2, 3])
    store.put([1, 2, 4])
    assert store.tier.make_room(64) == 4
    assert all(node.quantized for node in store.tree.nodes())
    store.audit()


def test_a_full_cold_tier_drops_its_own_coldest() -> None:
    store = Store(num_cold=4)
    for start in (10, 20, 30):
        store.put([start, start + 1])
    store.tier.make_room(6)
    assert [store.tree.peek("", [start, start + 1]) for start in (10, 20, 30)] == [0, 2, 2]
    store.put([1, 2, 3, 4, 5])  # longer than the whole tier
    assert store.tier.make_room(1) == 0
    store.audit()


def test_exact_requests_miss_8_bit_nodes_and_heal_them() -> None:
    store = Store()
    node = store.put([1, 2, 3, 4])
    store.tier.quantize(node)
    assert store.tree.peek("", [1, 2, 3, 4]) == 4
    assert store.tree.peek("", [1, 2, 3, 4], exact=True) == 0
    again = store.put([1, 2, 3, 4, 5], exact=True)
    lease = store.tree.lease(again, exact=True)
    assert store.tree.peek("", [1, 2, 3, 4, 5], exact=True) == 5
    assert not any(each.quantized for each in store.tree.path(lease.node))
    assert store.tree.cold_pool is not None
    assert store.tree.cold_pool.num_free_pages == 64
    store.audit()


def test_exact_tokens_stay_private_below_an_8_bit_node_that_is_leased() -> None:
    store = Store()
    node = store.put([1, 2, 3, 4])
    store.tier.quantize(node)
    reader = store.tree.lease(node, "reader")
    root = store.tree.match("", [1, 2, 3], exact=True).node
    slots = store.tree.pool.alloc(3)
    result = store.tree.insert(root, [1, 2, 3], slots, exact=True)
    assert (result.node, result.num_inserted, result.num_duplicate) == (root, 0, 0)
    assert store.tree.pool.is_owned(slots).all()
    assert reader.node.quantized
    assert not audit(store.tree, store.tree.pool, {"exact branch": slots})


def test_exact_leaves_are_evicted_before_8_bit_ones() -> None:
    store = Store()
    store.tier.quantize(store.put([1, 2]))
    store.put([3, 4])
    assert store.tree.evict(1) == 1
    assert (store.tree.peek("", [1, 2]), store.tree.peek("", [3, 4])) == (2, 1)
    store.put([5, 6])
    upper = store.put([7, 8])
    store.tier.quantize(store.put([7, 8, 9]))
    assert store.tree.evict(64) == 5  # also what stood above an 8-bit leaf
    assert not upper.is_attached
    assert store.tree.evict_cold(1) in (0, 1)
    store.audit()


def test_eight_bits_err_by_half_a_step_at_most() -> None:
    values = torch.randn(50, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    values[3] = 0
    steps, scales = quantize_tokens(values)
    error = (steps.float() * scales[..., None] - values).abs()
    assert (error <= scales[..., None] / 2 + 1e-7).all()
    assert (steps[3] == 0).all()
    assert steps.abs().max() == 127


def test_attention_reads_8_bit_nodes_where_they_are() -> None:
    """A branch over a cold prefix: as exact attention over the dequantised numbers."""
    store = Store()
    cold = store.put([1, 2, 3, 4, 5])
    k, v = store.cache.read(cold.slots)[0]
    store.tier.quantize(cold)
    store.cache.poison(np.arange(5, dtype=np.int32))  # the exact slots are nobody's now
    tail = store.tree.pool.alloc(1)
    batch = TreeBatch(
        segment_slots=[cold.slots, tail],
        segment_parent=np.array([-1, 0], np.int32),
        segment_start=np.array([0, 5], np.int32),
        branch_segment=np.array([1], np.int32),
        branch_query_start=np.array([5], np.int32),
        branch_num_queries=np.array([1], np.int32),
        segment_quantized=np.array([True, False]),
    )
    plan = plan_attention(batch, num_heads=HEADS, num_kv_heads=HEADS, head_dim=DIM)
    q, new_k, new_v = torch.randn(3, 1, HEADS, DIM, generator=store.random)
    out = attend(q, new_k, new_v, store.cache[0], plan, AttentionOptions(DIM**-0.5))
    exact = naive(q, torch.cat((k, new_k)), torch.cat((v, new_v)))
    rounded = naive(q, torch.cat((rounded_to_8(k), new_k)), torch.cat((rounded_to_8(v), new_v)))
    assert torch.allclose(out, rounded, atol=1e-5)
    assert torch.allclose(out, exact, atol=0.05)


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def rounded_to_8(values: torch.Tensor) -> torch.Tensor:
    steps, scales = quantize_tokens(values)
    return steps.float() * scales[..., None]


def test_a_cache_without_8_bit_slots_says_so() -> None:
    cache = KVCache(4, 1, 1, 2)
    with pytest.raises(ParameterError, match="num_cold_slots"):
        cache.quantize(np.array([0], np.int32), np.array([0], np.int32))
    tree = RadixTree(PagePool(4))
    node = tree.insert(tree.root(""), [1], tree.pool.alloc(1)).node
    assert not ColdTier(tree, cache).quantize(node)
    assert ColdTier(tree, cache).make_room(1) == 0
    assert tree.evict_cold(1) == 0
