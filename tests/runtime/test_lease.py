"""Leases keep paths, are given back once, and say who holds them; pins keep to their cap."""

from __future__ import annotations

import numpy as np
import pytest

from radixlang.errors import OwnershipError
from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.pins import ProgramPins
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree
from radixlang.runtime.diagnostics.invariants import audit


@pytest.fixture
def tree() -> RadixTree:
    return RadixTree(PagePool(64))


def cache(tree: RadixTree, tokens: list[int], namespace: str = "") -> RadixNode:
    """Put tokens into the tree as a finished request would; returns the node that ends them."""
    match = tree.match(namespace, tokens)
    new = tokens[match.length :]
    return tree.insert(match.node, new, tree.pool.alloc(len(new))).node


def test_evicting_everything_leaves_the_leased_node_itself(tree: RadixTree) -> None:
    node = cache(tree, [1, 2, 3])
    cache(tree, [1, 2, 3, 4, 5])
    lease = tree.lease(node)
    assert tree.evict(64) == 2
    assert tree.peek("", [1, 2, 3, 4]) == 3
    assert list(tree.slots(lease.node)) == [0, 1, 2]


def test_a_second_release_raises(tree: RadixTree) -> None:
    lease = tree.lease(cache(tree, [1, 2]), "branch 3")
    lease.release()
    with pytest.raises(OwnershipError, match="branch 3"):
        lease.release()
    with pytest.raises(OwnershipError, match="branch 3"):
        lease.fork()
    assert lease.is_released
    assert not audit(tree, tree.pool)


def test_a_fork_keeps_the_path_until_the_last_is_released(tree: RadixTree) -> None:
    leases = [tree.lease(cache(tree, [1, 2, 3]))]
    leases += [leases[0].fork() for _ in range(7)]
    assert leases[0].node.num_leases == 8
    for lease in leases:
        assert tree.evict(64) == 0
        lease.release()
    assert tree.evict(64) == 3


def test_a_split_keeps_the_lease_at_its_position(tree: RadixTree) -> None:
    lease = tree.lease(cache(tree, [1, 2, 3, 4]))
    node = lease.node
    upper = tree.match("", [1, 2]).node
    assert lease.node is node
    assert (node.start, node.end, node.parent) == (2, 4, upper)
    assert (upper.num_leases, node.num_leases) == (1, 1)
    assert list(tree.tokens(lease.node)) == [1, 2, 3, 4]


def test_moving_pins_the_new_before_it_lets_the_old_go(tree: RadixTree) -> None:
    lease = tree.lease(tree.root(""))
    for end in range(1, 5):
        lease.move(cache(tree, list(range(end))))
        assert not audit(tree, tree.pool)
        assert tree.num_protected_tokens == end
    lease.move(tree.root(""))
    assert tree.num_protected_tokens == 0
    lease.release()


def test_an_evicted_node_cannot_be_leased(tree: RadixTree) -> None:
    node = cache(tree, [1, 2])
    tree.evict(2)
    with pytest.raises(OwnershipError, match="evicted or merged"):
        tree.lease(node)
    with pytest.raises(OwnershipError, match="evicted or merged"):
        tree.insert(node, [3], tree.pool.alloc(1))


def test_pins_hold_until_their_program_ends(tree: RadixTree) -> None:
    pins = ProgramPins(tree, max_tokens=10)
    assert pins.pin("judge", cache(tree, [1, 2, 3]))
    assert pins.pin("judge", cache(tree, [1, 2, 4]))
    assert pins.num_pinned_tokens == 4
    assert tree.evict(64) == 0
    pins.release("judge")
    pins.release("judge")
    assert tree.evict(64) == 4


def test_pins_beyond_the_cap_are_refused(tree: RadixTree) -> None:
    pins = ProgramPins(tree, max_tokens=5)
    assert pins.pin("a", cache(tree, [1, 2, 3]))
    assert not pins.pin("b", cache(tree, [9, 8, 7]))
    assert pins.pin("b", cache(tree, [1, 2, 3, 4, 5]))  # only two tokens are new
    assert pins.programs() == ["a", "b"]
    assert pins.num_pinned_tokens == 5
    pins.release_all()
    assert not tree.leases
    assert not audit(tree, tree.pool)


def test_release_is_lazy(tree: RadixTree) -> None:
    lease = tree.lease(cache(tree, [1, 2, 3]))
    lease.release()
    assert tree.peek("", np.array([1, 2, 3])) == 3
