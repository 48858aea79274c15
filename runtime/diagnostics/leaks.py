"""The leak scanner: names of holders that are gone but still hold KV memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radixlang.runtime.cache.pages.page_pool import NO_SLOTS, PagePool, Slots
from radixlang.runtime.cache.radix_tree import RadixTree

PrivateSlots = Mapping[str, Slots]  # slots outside the tree, by holder


@dataclass(frozen=True, slots=True)
class Leak:
    """Tokens held by a holder that is gone: by a lease, or as slots outside the tree."""

    holder: str
    kind: str
    num_tokens: int


def find_leaks(
    tree: RadixTree,
    pool: PagePool,
    private: PrivateSlots,
    live_holders: Sequence[str],
) -> list[Leak]:
    """Leases and slots whose holder is not alive, with the holder's name if it is known."""
    leaks = [
        Leak(lease.holder or "an unnamed lease", "lease", lease.node.end)
        for lease in sorted(tree.leases, key=lambda lease: lease.holder)
        if lease.holder not in live_holders
    ]
    leaks += [
        Leak(holder, "private slots", len(slots))
        for holder, slots in private.items()
        if len(slots) and holder not in live_holders
    ]
    names = Counter(pool.holder(int(slot)) for slot in unaccounted(tree, pool, private))
    leaks += [
        Leak(name or "an unnamed holder", "slots outside the tree", count)
        for name, count in sorted(names.items())
    ]
    return leaks


def cached_slots(tree: RadixTree, pool: PagePool) -> tuple[Slots, Slots]:
    """The tree's slots of this pool: those of leased nodes, and those of idle ones."""
    quantized = pool is tree.cold_pool
    runs: tuple[list[Slots], list[Slots]] = ([NO_SLOTS], [NO_SLOTS])
    for node in tree.nodes():
        if node.quantized == quantized:
            runs[0 if node.num_leases else 1].append(node.slots)
    return np.concatenate(runs[0]), np.concatenate(runs[1])


def joined(private: PrivateSlots) -> Slots:
    """All private slots, whichever branch holds them."""
    return np.concatenate([NO_SLOTS, *(np.asarray(slots) for slots in private.values())])


def unaccounted(tree: RadixTree, pool: PagePool, private: PrivateSlots) -> Slots:
    """Owned slots that belong neither to the tree nor to a branch."""
    known = (joined(private), *cached_slots(tree, pool))
    return np.setdiff1d(pool.owned_slots(), np.concatenate(known))
