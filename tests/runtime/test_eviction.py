"""Who leaves first, by policy; how much of a leaf; and what the queue does under load."""

from __future__ import annotations

import numpy as np
import pytest

from radixlang.errors import ParameterError
from radixlang.runtime.cache.eviction import NEVER, POLICIES
from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree
from radixlang.runtime.diagnostics.invariants import audit


def make_tree(policy: str = "lru", num_pages: int = 64, page_size: int = 1) -> RadixTree:
    return RadixTree(PagePool(num_pages, page_size), policy=policy)


def cache(tree: RadixTree, tokens: list[int]) -> RadixNode:
    """Match, make room, insert: what a request does. Returns the node that ends the tokens."""
    match = tree.match("", tokens)
    new = tokens[match.length :]
    if not new:
        return match.node
    lease = tree.lease(match.node)
    tree.evict(tree.pool.num_pages_for(len(new)) - tree.pool.num_free_pages)
    lease.move(tree.insert(match.node, new, tree.pool.alloc(len(new))).node)
    node = lease.node
    lease.release()
    return node


def test_least_recently_used_leaves_first() -> None:
    tree = make_tree()
    for start in (10, 20, 30):
        cache(tree, [start, start + 1])
    tree.match("", [10, 11])
    assert tree.evict(2) == 2
    assert [tree.peek("", [start, start + 1]) for start in (10, 20, 30)] == [2, 0, 2]


def test_only_leaves_leave_and_their_parents_after_them() -> None:
    tree = make_tree()
    cache(tree, [1, 2, 3])
    cache(tree, [1, 2, 4])
    assert tree.evict(1) == 1
    assert (tree.peek("", [1, 2, 3]), tree.peek("", [1, 2, 4])) == (2, 3)
    assert tree.evict(64) == 3
    assert tree.structure.num_nodes == 0


def test_no_more_of_a_leaf_leaves_than_is_needed() -> None:
    tree = make_tree()
    cache(tree, list(range(10)))
    assert tree.evict(3) == 3
    assert tree.peek("", list(range(10))) == 7
    assert not audit(tree, tree.pool)


@pytest.mark.parametrize("page_size", [4, 16])
def test_pages_not_tokens_are_freed(page_size: int) -> None:
    """Retract and admission count pages; a call frees as many as it was asked for."""
    tree = make_tree(num_pages=16, page_size=page_size)
    for start in range(0, 800, 100):
        cache(tree, [*range(start, start + page_size + 1)])
    assert tree.pool.num_free_pages == 0
    assert tree.num_evictable_pages == 16
    for wanted in (1, 3, 5):
        free = tree.pool.num_free_pages
        assert tree.evict(wanted) >= wanted
        assert tree.pool.num_free_pages >= free + wanted
        assert not audit(tree, tree.pool)


def test_nothing_to_evict_frees_nothing() -> None:
    tree = make_tree()
    lease = tree.lease(cache(tree, [1, 2, 3]))
    assert tree.evict(1) == 0
    assert tree.evict_cold(1) == 0
    assert lease.node.num_leases == 1


def test_a_use_while_waiting_renews_the_place_in_the_queue() -> None:
    tree = make_tree()
    nodes = [cache(tree, [i]) for i in range(10)]
    for i in (0, 2, 4):
        tree.match("", [i])
    order = []
    while tree.num_cached_tokens:
        tree.evict(1)
        order += [i for i in range(10) if not nodes[i].is_attached and i not in order]
    assert order == [1, 3, 5, 6, 7, 8, 9, 0, 2, 4]


def test_the_queue_stays_small_however_often_leases_come_and_go() -> None:
    tree = make_tree()
    node = cache(tree, [1, 2, 3])
    for _ in range(5000):
        tree.lease(node).release()
    assert len(tree.policy._entries) <= 2 + 64
    assert not audit(tree, tree.pool)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParameterError, match="lru, slru, lookahead"):
        make_tree("fifo")
    assert list(POLICIES) == ["lru", "slru", "lookahead"]


# ---- segmented LRU


def hit_rate_under_scan(policy: str) -> float:
    """Eight hot prompts in turn; once all were hit, ten one-off prompts between any two."""
    tree = make_tree(policy, num_pages=160)
    rng = np.random.default_rng(0)
    hits = total = 0
    for turn in range(200):
        hot = [turn % 8, *range(100, 109)]
        if turn >= 16:
            hits += tree.peek("", hot)
            total += len(hot)
        cache(tree, hot)
        if turn >= 15:
            for _ in range(10):
                cache(tree, rng.integers(1000, 10**6, 10).tolist())
        assert not audit(tree, tree.pool)
    return hits / total


def test_a_scan_does_not_flush_the_hot_prefixes() -> None:
    assert hit_rate_under_scan("slru") > 0.9
    assert hit_rate_under_scan("lru") < 0.1


def test_the_protected_segment_is_bounded_so_yesterdays_hot_prefixes_leave() -> None:
    tree = make_tree("slru", num_pages=100)
    for i in range(10):
        cache(tree, [i, *range(1000, 1009)])
        tree.match("", [i, *range(1000, 1009)])
    for i in range(20, 40):  # new and hot: used twice each
        cache(tree, [i, *range(2000, 2009)])
        tree.match("", [i, *range(2000, 2009)])
    assert sum(tree.peek("", [i, *range(1000, 1009)]) for i in range(10)) == 0
    assert sum(tree.peek("", [i, *range(2000, 2009)]) for i in range(20, 40)) >= 90
    assert not audit(tree, tree.pool)


# ---- lookahead


def test_what_is_needed_farthest_in_the_future_leaves_first() -> None:
    tree = make_tree("lookahead")
    for token, step in ((1, 5.0), (2, 90.0), (3, 40.0)):
        tree.set_next_use(cache(tree, [token]), step)
    for gone in (2, 3, 1):
        tree.evict(1)
        assert tree.peek("", [gone]) == 0


def test_never_leaves_before_unknown_and_unknown_before_known() -> None:
    tree = make_tree("lookahead")
    cache(tree, [1])
    cache(tree, [2])
    tree.set_next_use(cache(tree, [3]), 1000)
    tree.set_next_use(cache(tree, [4]), NEVER)
    order = []
    for _ in range(4):
        tree.evict(1)
        order.append([token for token in (1, 2, 3, 4) if not tree.peek("", [token])])
    assert order == [[4], [1, 4], [1, 2, 4], [1, 2, 3, 4]]


def test_a_parent_inherits_the_next_use_of_its_evicted_child() -> None:
    tree = make_tree("lookahead")
    tree.set_next_use(cache(tree, [1, 2, 3]), 10)
    upper = tree.match("", [1, 2]).node
    tree.set_next_use(upper, None)
    tree.set_next_use(cache(tree, [7]), 20)
    tree.set_next_use(next(iter(upper.children.values())), 30)
    tree.evict(1)
    assert upper.next_use == 30
    tree.evict(1)
    assert (tree.peek("", [1, 2]), tree.peek("", [7])) == (1, 1)


def test_hints_that_have_passed_are_forgotten() -> None:
    tree = make_tree("lookahead")
    node, other = cache(tree, [1]), cache(tree, [2])
    tree.set_next_use(node, 5)
    tree.set_next_use(other, 9)
    tree.advance(5)
    assert node.next_use == 5
    tree.advance(6)
    assert (node.next_use, other.next_use) == (None, 9)
    tree.evict(1)
    assert not node.is_attached


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_evicts_everything_in_the_end(policy: str) -> None:
    tree = make_tree(policy, num_pages=512)
    rng = np.random.default_rng(1)
    for _ in range(300):
        node = cache(tree, rng.integers(0, 3, 8).tolist())
        tree.set_next_use(node, [None, NEVER, 3][int(rng.integers(3))])
    assert not audit(tree, tree.pool)
    tree.evict(512)
    assert (tree.structure.num_nodes, tree.pool.num_free_pages) == (0, 512)
