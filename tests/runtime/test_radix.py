"""The tree: matching, inserting, splitting, merging, namespaces, fan-out, batches, drawing."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from radixlang.errors import OwnershipError, ParameterError
from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.radix_tree import Namespace, RadixNode, RadixTree
from radixlang.runtime.cache.snapshot import draw, take_snapshot
from radixlang.runtime.diagnostics.invariants import audit, contents, matches_are_kept

PAGE_SIZES = [1, 4, 256]


def make_tree(num_pages: int = 256, page_size: int = 1) -> RadixTree:
    return RadixTree(PagePool(num_pages, page_size))


def cache(tree: RadixTree, tokens: list[int], namespace: Namespace | str = "") -> RadixNode:
    """Put tokens into the tree as a finished request would; returns the node that ends them."""
    match = tree.match(namespace, tokens)
    new = tokens[match.length :]
    return tree.insert(match.node, new, tree.pool.alloc(len(new))).node


def test_an_empty_tree_matches_nothing() -> None:
    tree = make_tree()
    match = tree.match("", [1, 2, 3])
    assert (match.length, match.node.is_root, tree.num_cached_tokens) == (0, True, 0)
    assert tree.match("", []).length == 0
    assert tree.peek("never seen", [1]) == 0
    assert "never seen" not in {space.salt for space in tree.roots}


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_a_match_ends_a_node_at_any_token(page_size: int) -> None:
    """Also inside a page: the rest of the page stays with the lower node."""
    for length in range(1, 8):
        tree = make_tree(8, page_size)
        slots = cache(tree, list(range(8))).slots.copy()
        match = tree.match("", [*range(length), 99])
        assert match.length == match.node.end == length
        assert list(tree.slots(match.node)) == list(slots[:length])
        assert not audit(tree, tree.pool)


@pytest.mark.parametrize("page_size", [4, 256])
def test_a_key_shorter_than_a_page_is_cached_and_matched(page_size: int) -> None:
    tree = make_tree(4, page_size)
    cache(tree, [1, 2])
    assert tree.peek("", [1, 2, 3]) == 2
    assert tree.pool.num_free_pages == 3


@pytest.mark.parametrize("page_size", [4, 256])
def test_siblings_share_a_page_by_reference(page_size: int) -> None:
    """Half a page matched costs no copy; the page lives as long as either owner."""
    tree = make_tree(4, page_size)
    cache(tree, [1, 2, 3, 4])
    first = tree.lease(cache(tree, [1, 2, 7]))
    assert first.node.start == 2
    assert tree.evict(4) == 0  # [3, 4] is gone, its page is not: [1, 2] lives there
    assert tree.peek("", [1, 2, 3]) == 2
    first.release()
    assert tree.clear() == 3
    assert tree.pool.num_free_pages == 4


def test_peek_changes_nothing() -> None:
    tree = make_tree()
    node = cache(tree, [1, 2, 3])
    uses = tree.num_uses
    assert tree.peek("", [1, 2, 9]) == 2
    assert (tree.num_uses, node.length, tree.structure.num_nodes) == (uses, 3, 1)


def test_duplicates_go_back_to_the_pool_and_the_tree_keeps_its_slots() -> None:
    tree = make_tree()
    cache(tree, [1, 2, 3])
    own = tree.lease(tree.root(""))
    result = tree.insert(own.node, [1, 2, 3, 4], tree.pool.alloc(4))
    assert (result.num_duplicate, result.num_inserted) == (3, 1)
    assert list(tree.slots(result.node)) == [0, 1, 2, 6]
    assert tree.pool.num_pages - tree.pool.num_free_pages == 4
    assert not audit(tree, tree.pool)


def test_tokens_and_slots_must_be_as_many() -> None:
    tree = make_tree()
    with pytest.raises(ParameterError, match="3 tokens came with 2 slots"):
        tree.insert(tree.root(""), [1, 2, 3], tree.pool.alloc(2))


def test_split_and_merge_change_no_match() -> None:
    tree = make_tree()
    node = cache(tree, list(range(10)))
    before = contents(tree)
    upper = tree.structure.split(node, 4)
    assert not matches_are_kept(before, tree)
    assert (upper.start, upper.end, node.start, node.end) == (0, 4, 4, 10)
    tree.structure.split(node, 1)
    assert tree.structure.merge_chains() == 2
    assert tree.structure.num_nodes == 1
    assert not matches_are_kept(before, tree)
    with pytest.raises(ParameterError, match="cannot split"):
        tree.structure.split(node, 10)


def test_a_merge_keeps_the_node_object_at_the_end() -> None:
    tree = make_tree()
    lease = tree.lease(cache(tree, [1, 2, 3, 4]))
    tree.structure.split(lease.node, 2)
    assert tree.structure.merge(lease.node)
    assert (lease.node.start, lease.node.end) == (0, 4)
    assert not audit(tree, tree.pool)


def test_a_lease_between_two_nodes_keeps_them_apart() -> None:
    tree = make_tree()
    upper = tree.lease(cache(tree, [1, 2]))
    cache(tree, [1, 2, 3, 4])
    assert tree.structure.merge_chains() == 0
    upper.release()
    assert tree.structure.merge_chains() == 1


def test_chains_used_apart_stay_apart() -> None:
    """A merge would make the cold end as young as its start, and change who is evicted first."""
    tree = make_tree()
    cache(tree, [1, 2, 3, 4])
    cache(tree, [5])
    tree.match("", [1, 2])
    assert tree.structure.merge_chains() == 0
    tree.evict(2)
    assert (tree.peek("", [1, 2, 3]), tree.peek("", [5])) == (2, 1)


def test_ten_thousand_children_are_found_in_one_step() -> None:
    """Each match looks at the children of one node once, however many there are."""
    tree = make_tree(32_768)
    for i in range(10_000):
        cache(tree, [7, 8, i, 1])
    root = tree.root("")
    assert len(root.children) == 1
    wide = next(iter(root.children.values()))
    assert (wide.length, len(wide.children)) == (2, 10_000)
    probes = [tree.match("", [7, 8, i, 1]) for i in (0, 5000, 9999)]
    assert all(len(tree.path(match.node)) == 2 for match in probes)


# ---- namespaces


@pytest.mark.parametrize(
    "other",
    [
        Namespace("tenant b", 1),
        Namespace("tenant a", 2),
    ],
)
def test_namespaces_share_nothing(other: Namespace) -> None:
    """Another tenant's salt misses, so timing tells nothing; the same salt hits."""
    tree = make_tree()
    ours = Namespace("tenant a", 1)
    cache(tree, [1, 2, 3], ours)
    assert tree.peek(ours, [1, 2, 3]) == 3
    assert tree.peek(other, [1, 2, 3]) == 0
    cache(tree, [1, 2, 3], other)
    assert tree.num_cached_tokens == 6
    assert not audit(tree, tree.pool)


def test_a_text_namespace_is_a_salt() -> None:
    tree = make_tree()
    cache(tree, [1], "tenant")
    assert tree.peek(Namespace("tenant"), [1]) == 1


def test_retired_weights_go_at_once_where_idle_and_at_release_where_leased() -> None:
    tree = make_tree()
    old, new = Namespace(weights_version=1), Namespace(weights_version=2)
    running = tree.lease(cache(tree, [1, 2], old), "running")
    cache(tree, [1, 2, 3, 4], old)
    cache(tree, [1, 2], new)
    assert tree.retire(old) == 2
    assert list(tree.tokens(running.node)) == [1, 2]
    assert not audit(tree, tree.pool)
    running.release()
    assert (tree.peek(old, [1]), tree.peek(new, [1])) == (0, 1)
    assert tree.num_cached_tokens == 2
    assert set(tree.roots) == {new}


def test_roots_of_tenants_that_left_are_dropped() -> None:
    tree = make_tree()
    for i in range(50):
        cache(tree, [1, 2], f"tenant {i}")
    tree.clear()
    assert not tree.roots
    assert tree.pool.num_free_pages == tree.pool.num_pages


# ---- snapshots and drawing


def test_a_snapshot_stays_as_it_was() -> None:
    tree = make_tree()
    lease = tree.lease(cache(tree, [1, 2, 3, 4]), "branch 1")
    snapshot = take_snapshot(tree)
    cache(tree, [1, 2, 9])
    lease.release()
    tree.clear()
    ((_, (view,)),) = snapshot.roots
    assert view.tokens.tolist() == [1, 2, 3, 4]
    assert (view.holders, view.num_leases, view.children) == (("branch 1",), 1, ())
    assert snapshot.num_cached_tokens == 4
    with pytest.raises(ValueError, match="read-only"):
        view.tokens[0] = 7


def test_readers_on_other_threads_see_whole_snapshots_while_the_owner_works() -> None:
    tree = make_tree(2048)
    latest = [take_snapshot(tree)]
    stop = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not stop.is_set():
            snapshot = latest[0]
            lines = draw(snapshot, max_children=10_000).count("\n")
            if lines != snapshot.num_nodes + len(snapshot.roots):
                wrong.append(f"{lines} lines, {snapshot.num_nodes} nodes")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    rng = np.random.default_rng(0)
    for _ in range(300):
        cache(tree, rng.integers(0, 4, 6).tolist())
        if tree.pool.num_free_pages < 64:
            tree.evict(512)
        latest[0] = take_snapshot(tree)
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_the_drawing_shows_branches_leases_and_text() -> None:
    tree = make_tree(100)
    leases = [tree.lease(cache(tree, [1, 2, 3, *tail])) for tail in ([4, 5], [6])]
    cache(tree, [9], Namespace("tenant", 2))
    text = draw(take_snapshot(tree), lambda ids: "".join(chr(96 + i) for i in ids))
    assert text.splitlines() == [
        "radix tree: 7 tokens in 4 nodes, 6 leased; 93 of 100 pages free",
        "●",
        "└─ [3 · 2 leases · 1 hit]  abc",
        "   ├─ [2 · 1 lease]  de",
        "   └─ [1 · 1 lease]  f",
        "salt 'tenant', weights version 2",
        "└─ [1]  i",
    ]
    for lease in leases:
        lease.release()


def test_the_drawing_cuts_long_text_and_wide_nodes() -> None:
    tree = make_tree(4096)
    for i in range(30):
        cache(tree, [1, i, *range(60)])
    text = draw(take_snapshot(tree), max_children=5, max_text=12)
    assert "… 25 more" in text
    assert max(map(len, text.splitlines()[1:])) < 60


def test_a_deep_tree_needs_no_recursion() -> None:
    tree = make_tree(8192)
    lease = tree.lease(tree.root(""))
    for i in range(3000):
        lease.move(tree.insert(lease.node, [i], tree.pool.alloc(1)).node)
    assert draw(take_snapshot(tree)).count("\n") == 3001
    assert len(tree.path(lease.node)) == 3000
    lease.release()
    assert tree.structure.merge_chains() > 0
    assert tree.clear() == 3000


def test_a_negative_count_raises() -> None:
    tree = make_tree()
    node = cache(tree, [1, 2])
    with pytest.raises(OwnershipError, match="negative"):
        tree.unpin(node)
