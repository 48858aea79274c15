"""Every invariant finds the fault that it is there for, and names it; a sound cache is clean."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.radix_tree import Namespace, RadixNode, RadixTree
from radixlang.runtime.diagnostics import invariants as checks
from radixlang.runtime.diagnostics.invariants import Violation, audit
from radixlang.runtime.diagnostics.leaks import find_leaks


class Cache:
    """A tree with a leased path [1, 2, 3, 4], an idle branch [1, 2, 9], and a private tail."""

    def __init__(self) -> None:
        self.pool = PagePool(32, track_holders=True)
        self.tree = RadixTree(self.pool, cold_pool=PagePool(8))
        self.lease = self.tree.lease(self.put([1, 2, 3, 4]), "branch 1")
        self.idle = self.put([1, 2, 9])
        self.private = {"branch 1": self.pool.alloc(3, holder="branch 1")}

    def put(self, tokens: list[int]) -> RadixNode:
        match = self.tree.match("", tokens)
        new = tokens[match.length :]
        return self.tree.insert(match.node, new, self.pool.alloc(len(new), holder="tree")).node

    def audit(self) -> list[Violation]:
        return audit(self.tree, self.pool, self.private)


def test_a_sound_cache_is_clean() -> None:
    cache = Cache()
    assert cache.audit() == []
    cache.pool.release(cache.private.pop("branch 1"))
    assert cache.audit() == []


def leak_slots(cache: Cache) -> None:
    cache.pool.alloc(2, holder="branch 7")


def own_twice(cache: Cache) -> None:
    cache.private["branch 2"] = cache.private["branch 1"][:1]


def own_what_is_free(cache: Cache) -> None:
    cache.private["branch 1"] = np.append(cache.private["branch 1"], 30).astype(np.int32)


def skip_a_count(cache: Cache) -> None:
    cache.lease.node.num_leases += 1


def lose_the_root_count(cache: Cache) -> None:
    cache.tree.root("").num_leases -= 1


def miscount_tokens(cache: Cache) -> None:
    cache.tree.num_protected_tokens += 1


def miscount_pages(cache: Cache) -> None:
    cache.pool.mark_idle(cache.idle.slots, -1)


def drop_a_slot(cache: Cache) -> None:
    cache.idle.slots = cache.idle.slots[:0]


def file_under_another_token(cache: Cache) -> None:
    parent = cache.idle.parent
    assert parent is not None
    parent.children[b"0000"] = parent.children.pop(cache.idle.edge[:8])


def lose_the_parent(cache: Cache) -> None:
    cache.idle.parent = cache.tree.root("")


def lose_the_queue_entry(cache: Cache) -> None:
    cache.tree.policy.discard(cache.idle)


def queue_a_leased_leaf(cache: Cache) -> None:
    cache.tree.policy.add(cache.lease.node)


def use_below_an_unused_parent(cache: Cache) -> None:
    cache.idle.last_use += 100


def mix_namespaces(cache: Cache) -> None:
    cache.idle.namespace = Namespace("other tenant")


def promise_exactness_over_8_bits(cache: Cache) -> None:
    assert cache.tree.cold_pool is not None
    cache.tree.store(cache.idle, cache.tree.cold_pool.alloc(1), quantized=True)
    cache.tree.lease(cache.idle, "strict", exact=True)


FAULTS: list[tuple[Callable[[Cache], None], int]] = [
    (leak_slots, 1),
    (own_twice, 2),
    (own_what_is_free, 2),
    (skip_a_count, 3),
    (lose_the_root_count, 3),
    (miscount_tokens, 4),
    (miscount_pages, 4),
    (drop_a_slot, 5),
    (file_under_another_token, 6),
    (lose_the_parent, 6),
    (lose_the_queue_entry, 7),
    (queue_a_leased_leaf, 7),
    (use_below_an_unused_parent, 8),
    (mix_namespaces, 15),
    (promise_exactness_over_8_bits, 18),
]


@pytest.mark.parametrize(("fault", "number"), FAULTS, ids=lambda it: getattr(it, "__name__", it))
def test_a_fault_is_found(fault: Callable[[Cache], None], number: int) -> None:
    cache = Cache()
    fault(cache)
    found = cache.audit()
    assert number in {violation.number for violation in found}
    assert all(str(violation).startswith("invariant ") for violation in found)


def test_15_a_lease_of_an_evicted_node_is_found() -> None:
    cache = Cache()
    lease = cache.tree.lease(cache.tree.root(""), "haunted")
    cache.tree.evict(1)
    assert not cache.idle.is_attached
    lease._node = cache.idle
    (violation,) = checks.namespaces_agree(cache.tree)
    assert (violation.number, "haunted leases a ghost" in violation.detail) == (15, True)


def test_a_leak_names_its_holder() -> None:
    cache = Cache()
    cache.pool.alloc(2, holder="branch 7 of judge")
    (violation,) = checks.pages_add_up(cache.tree, cache.pool, cache.private)
    assert "2 leaked by branch 7 of judge" in violation.detail
    leaks = find_leaks(cache.tree, cache.pool, cache.private, live_holders=[])
    assert [(leak.holder, leak.kind, leak.num_tokens) for leak in leaks] == [
        ("branch 1", "lease", 4),
        ("branch 1", "private slots", 3),
        ("branch 7 of judge", "slots outside the tree", 2),
    ]
    live = find_leaks(cache.tree, cache.pool, cache.private, live_holders=["branch 1"])
    assert [leak.holder for leak in live] == ["branch 7 of judge"]


def test_9_a_changed_match_is_found() -> None:
    cache = Cache()
    before = checks.contents(cache.tree)
    cache.tree.evict(1)
    assert checks.matches_are_kept(before, cache.tree)[0].number == 9


def test_10_uncomputed_tokens_in_the_tree_are_found() -> None:
    cache = Cache()
    computed = np.ones(cache.pool.num_slots, bool)
    assert not checks.only_computed_is_cached(cache.tree, computed)
    computed[cache.idle.slots] = False
    assert checks.only_computed_is_cached(cache.tree, computed)[0].number == 10


def test_11_a_stale_page_table_is_found() -> None:
    """The freed duplicates of an insertion still in the caller's table."""
    cache = Cache()
    stale = cache.pool.alloc(4)
    result = cache.tree.insert(cache.tree.root(""), [1, 2, 3, 4], stale)
    cache.lease.move(result.node)
    found = checks.tables_follow_tree(cache.tree, {"branch 1": (cache.lease, stale)})
    assert found[0].number == 11
    mended = {"branch 1": (cache.lease, cache.tree.slots(result.node))}
    assert not checks.tables_follow_tree(cache.tree, mended)


def test_12_more_committed_than_allocated_is_found() -> None:
    assert not checks.commits_fit({"a": (3, 3)})
    assert checks.commits_fit({"a": (3, 3), "b": (4, 3)})[0].detail.startswith("b committed 4")


def test_13_pages_freed_in_flight_are_found() -> None:
    cache = Cache()
    reading = cache.tree.slots(cache.idle)
    assert not checks.nothing_freed_in_flight(cache.pool, reading)
    cache.tree.evict(1)
    assert checks.nothing_freed_in_flight(cache.pool, reading)[0].number == 13


def test_14_a_prompt_matched_whole_is_found() -> None:
    """A fully cached prompt leaves no query, and so no logits."""
    assert not checks.queries_remain({"a": (9, 10)})
    assert checks.queries_remain({"a": (10, 10)})[0].number == 14


def test_16_idle_means_nothing_is_held() -> None:
    cache = Cache()
    found = checks.idle_is_empty(cache.tree, cache.pool, cache.private)
    assert {violation.number for violation in found} == {16}
    assert any("branch 1" in violation.detail for violation in found)
    cache.pool.release(cache.private.pop("branch 1"))
    cache.lease.release()
    assert not checks.idle_is_empty(cache.tree, cache.pool, {})


def test_17_a_failed_admission_that_left_something_is_found() -> None:
    cache = Cache()
    before = checks.totals(cache.tree, cache.pool)
    assert not checks.failed_admission_changes_nothing(
        before, checks.totals(cache.tree, cache.pool)
    )
    cache.tree.lease(cache.idle, "half admitted")
    after = checks.totals(cache.tree, cache.pool)
    assert checks.failed_admission_changes_nothing(before, after)[0].number == 17
