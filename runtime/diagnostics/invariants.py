"""The invariants of the cache as functions; each returns its violations.

`audit` runs those that need only the tree, the pool and the private slots of branches.
The others take what they check as arguments and are called by the engine and by tests. All of them
recount from scratch: they are for tests, debug mode and idle moments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.node import TOKEN_BYTES, first_token
from radixlang.runtime.cache.pages.page_pool import PagePool, Slots
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree
from radixlang.runtime.diagnostics.leaks import (
    PrivateSlots,
    cached_slots,
    find_leaks,
    joined,
    unaccounted,
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant: its number, the name of its function, and what was found."""

    number: int
    name: str
    detail: str

    def __str__(self) -> str:
        return f"invariant {self.number} ({self.name}): {self.detail}"


def audit(
    tree: RadixTree,
    pool: PagePool,
    private_slots: PrivateSlots | None = None,
    *,
    private_cold_slots: PrivateSlots | None = None,
) -> list[Violation]:
    """Every violation in tree, pool and private slots; empty if there is none."""
    private = private_slots or {}
    found = [
        *pages_add_up(tree, pool, private),
        *owners_are_disjoint(tree, pool, private),
        *counts_nest(tree),
        *counters_match(tree, pool),
        *keys_match_slots(tree),
        *links_agree(tree),
        *evictable_leaves_are_queued(tree),
        *use_times_nest(tree),
        *namespaces_agree(tree),
        *tiers_do_not_mix(tree),
    ]
    if tree.cold_pool is not None:
        cold = private_cold_slots or {}
        found += pages_add_up(tree, tree.cold_pool, cold)
        found += owners_are_disjoint(tree, tree.cold_pool, cold)
        found += counters_match(tree, tree.cold_pool)
    return found


# ---- 1 to 8: the tree, the pool and ownership


def pages_add_up(tree: RadixTree, pool: PagePool, private: PrivateSlots) -> list[Violation]:
    """1: free + evictable + protected + private pages = total.

    A page of several owners counts for the first of: private, protected, evictable.
    """
    kinds = (joined(private), *cached_slots(tree, pool))
    owner = np.zeros(pool.num_pages, bool)
    counts = []
    for slots in kinds:
        pages = np.unique(slots // pool.page_size)
        counts.append(int(np.count_nonzero(~owner[pages])))
        owner[pages] = True
    total = pool.num_free_pages + sum(counts)
    if total == pool.num_pages:
        return []
    names = ("private", "protected", "evictable")
    parts = ", ".join(f"{count} {name}" for name, count in zip(names, counts, strict=True))
    missing = pool.num_pages - total
    word = f"{missing} leaked" if missing > 0 else f"{-missing} owned twice"
    holders = sorted({pool.holder(int(slot)) for slot in unaccounted(tree, pool, private)} - {""})
    named = f" by {', '.join(holders)}" if holders else ""
    detail = f"{pool.num_free_pages} free, {parts}: {total} of {pool.num_pages} pages, {word}"
    return [Violation(1, "pages_add_up", detail + named)]


def owners_are_disjoint(tree: RadixTree, pool: PagePool, private: PrivateSlots) -> list[Violation]:
    """2: every slot that is not free has exactly one owner, and no free slot has any."""
    expected = np.zeros(pool.num_slots, np.int64)
    for slots in (joined(private), *cached_slots(tree, pool)):
        np.add.at(expected, slots, 1)
    owned = pool.is_owned(np.arange(pool.num_slots, dtype=np.int32))
    wrong = np.flatnonzero(expected != owned)
    found = []
    if len(wrong):
        slot = int(wrong[0])
        detail = (
            f"{len(wrong)} slots without one owner each; slot {slot} is "
            f"{'taken' if owned[slot] else 'free'} and has {expected[slot]} owners "
            f"{_owners(tree, private, slot)}"
        )
        found.append(Violation(2, "owners_are_disjoint", detail))
    used = np.unique(np.flatnonzero(expected) // pool.page_size)
    both = np.intersect1d(used, pool.free_pages())
    if len(both):
        found.append(Violation(2, "owners_are_disjoint", f"pages {both[:8]} are free and owned"))
    return found


def counts_nest(tree: RadixTree) -> list[Violation]:
    """3: lease counts equal the number of leases, nest along paths, and are ≥ 1 at roots."""
    expected: Counter[RadixNode] = Counter()
    for lease in tree.leases:
        at: RadixNode | None = lease.node
        while at is not None:
            expected[at] += 1
            at = at.parent
    found = []
    for node in [*tree.roots.values(), *tree.nodes()]:
        count = expected[node] + (node.parent is None)
        if node.num_leases != count:
            found.append(_at(3, "counts_nest", node, f"count {node.num_leases}, leases {count}"))
        if node.parent is not None and node.parent.num_leases < node.num_leases:
            found.append(_at(3, "counts_nest", node, "has a higher count than its parent"))
    return found


def counters_match(tree: RadixTree, pool: PagePool) -> list[Violation]:
    """4: the running counters of tokens and pages equal a recount."""
    nodes = list(tree.nodes())
    _, idle = cached_slots(tree, pool)
    owned = np.bincount(pool.owned_slots() // pool.page_size, minlength=pool.num_pages)
    idle_owned = np.bincount(idle // pool.page_size, minlength=pool.num_pages)
    counted = {
        "cached tokens": (tree.num_cached_tokens, sum(node.length for node in nodes)),
        "protected tokens": (
            tree.num_protected_tokens,
            sum(node.length for node in nodes if node.num_leases),
        ),
        "evictable pages": (
            pool.num_evictable_pages,
            int(np.count_nonzero((idle_owned == owned) & (owned > 0))),
        ),
        "free pages": (pool.num_free_pages, int(np.count_nonzero(owned == 0))),
    }
    return [
        Violation(4, "counters_match", f"{name}: counter {have}, recount {want}")
        for name, (have, want) in counted.items()
        if have != want
    ]


def keys_match_slots(tree: RadixTree) -> list[Violation]:
    """5: as many tokens as slots, no empty node, siblings differ in their first token."""
    found = []
    for node in tree.nodes():
        if len(node.key) != len(node.slots):
            sizes = f"{len(node.key)} tokens, {len(node.slots)} slots"
            found.append(_at(5, "keys_match_slots", node, sizes))
        if not node.edge:
            found.append(_at(5, "keys_match_slots", node, "is empty"))
        firsts = {first_token(child.edge) for child in node.children.values()}
        if len(firsts) != len(node.children):
            found.append(_at(5, "keys_match_slots", node, "has siblings with one first token"))
    return found


def links_agree(tree: RadixTree) -> list[Violation]:
    """6: dictionary keys equal first tokens; parents, starts and children agree."""
    found = []
    for parent in [*tree.roots.values(), *tree.nodes()]:
        for first, child in parent.children.items():
            if first != first_token(child.edge):
                found.append(_at(6, "links_agree", child, "stands under another first token"))
            if child.parent is not parent or child.start != parent.end:
                found.append(_at(6, "links_agree", child, "disagrees with its parent"))
    return found


def evictable_leaves_are_queued(tree: RadixTree) -> list[Violation]:
    """7: the eviction queue holds exactly the leaves without a lease, each by a live entry."""
    found = []
    for policy, quantized in ((tree.policy, False), (tree.cold_policy, True)):
        expected = {
            node
            for node in tree.nodes()
            if node.quantized == quantized and not node.children and node.num_leases == 0
        }
        entries = policy.queued()
        queued = [node for _, _, node in entries]
        for node in expected.symmetric_difference(queued):
            word = "is not queued" if node in expected else "is queued wrongly"
            found.append(_at(7, "evictable_leaves_are_queued", node, word))
        if len(queued) != len(set(queued)) or set(queued) != policy.leaves:
            detail = f"{len(queued)} entries, {len(policy.leaves)} leaves"
            found.append(Violation(7, "evictable_leaves_are_queued", detail))
    return found


def use_times_nest(tree: RadixTree) -> list[Violation]:
    """8: no node was used later than its parent."""
    return [
        _at(8, "use_times_nest", node, f"used at {node.last_use}, parent {node.parent.last_use}")
        for node in tree.nodes()
        if node.parent is not None and node.last_use > node.parent.last_use
    ]


# ---- 9 to 18: invariants that need more than the tree


def matches_are_kept(before: Mapping[bytes, int], tree: RadixTree) -> list[Violation]:
    """9: a split or merge changes neither cached prefixes nor slots. `before` is `contents`."""
    after = contents(tree)
    changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    if not changed:
        return []
    return [Violation(9, "matches_are_kept", f"{len(changed)} cached prefixes changed")]


def contents(tree: RadixTree) -> dict[bytes, int]:
    """Every cached prefix, by namespace and tokens, with the slot of its last token."""
    found = {}
    for node in tree.nodes():
        prefix = repr(node.namespace).encode() + tree.tokens(node).tobytes()
        for i, slot in enumerate(node.slots.tolist()):
            cut = len(prefix) - TOKEN_BYTES * (node.length - 1 - i)
            found[prefix[:cut]] = -1 - slot if node.quantized else slot
    return found


def only_computed_is_cached(tree: RadixTree, is_computed: NDArray[np.bool_]) -> list[Violation]:
    """10: only tokens whose keys and values were computed are in the tree.

    Args:
        is_computed: [num_slots], true where a forward pass has written the slot.
    """
    return [
        _at(10, "only_computed_is_cached", node, "holds slots that were never computed")
        for node in tree.nodes()
        if not node.quantized and not is_computed[node.slots].all()
    ]


def tables_follow_tree(
    tree: RadixTree, tables: Mapping[str, tuple[Lease, Slots]]
) -> list[Violation]:
    """11: a branch reads the tree's own slots over its leased prefix, not freed duplicates."""
    found = []
    for holder, (lease, slots) in tables.items():
        expected = tree.slots(lease.node)
        if not np.array_equal(slots[: len(expected)], expected):
            detail = f"{holder} reads other slots than the tree's over its {len(expected)} tokens"
            found.append(Violation(11, "tables_follow_tree", detail))
    return found


def commits_fit(lengths: Mapping[str, tuple[int, int]]) -> list[Violation]:
    """12: committed ≤ allocated tokens, by holder."""
    return [
        Violation(12, "commits_fit", f"{holder} committed {committed} of {allocated} slots")
        for holder, (committed, allocated) in lengths.items()
        if committed > allocated
    ]


def nothing_freed_in_flight(pool: PagePool, in_flight_slots: Slots) -> list[Violation]:
    """13: every slot that a running step may read is owned."""
    free = in_flight_slots[~pool.is_owned(in_flight_slots)]
    if not len(free):
        return []
    return [Violation(13, "nothing_freed_in_flight", f"slots {free[:8]} are free and being read")]


def queries_remain(matched: Mapping[str, tuple[int, int]]) -> list[Violation]:
    """14: a request that needs logits computes at least one token: (matched, prompt length)."""
    return [
        Violation(14, "queries_remain", f"{holder} matched {num} of {total} prompt tokens")
        for holder, (num, total) in matched.items()
        if num > total - 1
    ]


def namespaces_agree(tree: RadixTree) -> list[Violation]:
    """15: one namespace along a path, each node below one root, leases on attached nodes."""
    found = []
    for namespace, root in tree.roots.items():
        if root.namespace != namespace or root.parent is not None:
            found.append(_at(15, "namespaces_agree", root, "is a root of another namespace"))
    seen: set[RadixNode] = set(tree.roots.values())
    for node in tree.nodes():
        if node.parent is not None and node.namespace != node.parent.namespace:
            found.append(_at(15, "namespaces_agree", node, "is of another namespace"))
        if node in seen:
            found.append(_at(15, "namespaces_agree", node, "is reached twice"))
        seen.add(node)
    ghosts = [lease for lease in tree.leases if lease.node not in seen]
    found += [_at(15, "namespaces_agree", it.node, f"{it.holder} leases a ghost") for it in ghosts]
    return found


def idle_is_empty(tree: RadixTree, pool: PagePool, private: PrivateSlots) -> list[Violation]:
    """16: with nothing running, no path is protected and no slot is outside the tree."""
    found = [
        Violation(16, "idle_is_empty", f"{leak.holder} still holds {leak.num_tokens} tokens")
        for leak in find_leaks(tree, pool, private, live_holders=())
    ]
    if tree.num_protected_tokens and not found:
        detail = f"{tree.num_protected_tokens} tokens protected by nobody"
        found.append(Violation(16, "idle_is_empty", detail))
    return found


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals that a failed admission must not change."""

    num_free_pages: int
    num_owned_slots: int
    num_cached_tokens: int
    num_protected_tokens: int
    num_leases: int


def totals(tree: RadixTree, pool: PagePool) -> Totals:
    """Counts of tree and pool now."""
    return Totals(
        pool.num_free_pages,
        len(pool.owned_slots()),
        tree.num_cached_tokens,
        tree.num_protected_tokens,
        len(tree.leases),
    )


def failed_admission_changes_nothing(before: Totals, after: Totals) -> list[Violation]:
    """17: totals before and after an admission that failed are the same."""
    if before == after:
        return []
    return [Violation(17, "failed_admission_changes_nothing", f"{before} became {after}")]


def tiers_do_not_mix(tree: RadixTree) -> list[Violation]:
    """18: no exact lease has an 8-bit node on its path."""
    return [
        _at(18, "tiers_do_not_mix", node, f"is in 8 bits under the exact lease of {lease.holder}")
        for lease in tree.leases
        if lease.exact
        for node in tree.path(lease.node)
        if node.quantized
    ]


# ---- inside


def _owners(tree: RadixTree, private: PrivateSlots, slot: int) -> list[str]:
    names = [holder for holder, slots in private.items() if slot in slots]
    return names + list(_nodes_with(tree, slot))


def _nodes_with(tree: RadixTree, slot: int) -> Iterator[str]:
    for node in tree.nodes():
        if slot in node.slots:
            yield f"cached tokens {node.start} to {node.end}"


def _at(number: int, name: str, node: RadixNode, detail: str) -> Violation:
    return Violation(number, name, f"node of tokens {node.start} to {node.end} {detail}")
