"""The allocator of the KV pool: which slots are owned, and which pages are free.

A slot holds the keys and values of one token in every layer; a page is `page_size` neighbouring
slots, and the unit of allocation. A slot has one owner: a node of the tree, or a branch that has
not committed it; branches share slots by leasing nodes. Attention reads slots, not pages, so parts
of a page may be shared: if a prompt matches half a page, the match refers to those slots, and the
other half may have another owner. Nothing is copied. A page is free if none of its slots is owned.

This file knows neither tensors nor tokens. One thread owns a pool; nothing here locks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from radixlang.errors import OwnershipError, ParameterError, PoolExhaustedError
from radixlang.runtime.cache.pages.free_list import FreeRuns
from radixlang.runtime.cache.pages.page_counts import PageTally
from radixlang.runtime.cache.pages.slots import NO_SLOTS, Slots, runs_of, slots_of

__all__ = ["NO_SLOTS", "PagePool", "PoolFull", "Slots"]

FREE, OWNED = 0, 1  # states of a slot


class PoolFull(PoolExhaustedError):  # noqa: N818  the engine catches it, evicts and asks again
    """An allocation needs more pages than are free; nothing was changed."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(
            f"the KV pool has {free} free pages and {needed} are needed; "
            "evict cached prefixes, or make the pool larger (kv_bytes=)"
        )
        self.needed = needed
        self.free = free


class PagePool:
    """Hands out slots and takes them back.

    Args:
        num_pages: capacity in pages.
        page_size: slots of a page, 1 to 256.
        track_holders: remember a label for every allocated slot, so that a leak has a name.
    """

    def __init__(self, num_pages: int, page_size: int = 1, *, track_holders: bool = False) -> None:
        if num_pages < 0:
            raise ParameterError(f"num_pages must be at least 0, got {num_pages}")
        if not 1 <= page_size <= 256:
            raise ParameterError(f"page_size must be between 1 and 256, got {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = FreeRuns(num_pages)
        self._state = np.zeros(num_pages * page_size, np.uint8)
        self._tally = PageTally(num_pages, page_size)
        self._holders: dict[int, str] | None = {} if track_holders else None

    @property
    def num_free_pages(self) -> int:
        """Pages without an owned slot."""
        return self._free.num_pages

    @property
    def num_evictable_pages(self) -> int:
        """Pages whose owned slots are all cached and without a lease."""
        return self._tally.num_level_pages - self._free.num_pages

    @property
    def num_slots(self) -> int:
        """Capacity in tokens."""
        return len(self._state)

    @property
    def num_free_runs(self) -> int:
        """Runs of free memory: 1 means no fragmentation."""
        return self._free.num_runs

    @property
    def longest_free_run(self) -> int:
        """Pages of the longest run of free memory."""
        return self._free.longest()

    def alloc(self, num_tokens: int, *, after_slot: int | None = None, holder: str = "") -> Slots:
        """Slots for num_tokens, owned by the caller, contiguous where possible.

        With `after_slot`, allocation continues after that slot: in the rest of its page, then
        in the next page if it is free.

        Returns:
            int32 [num_tokens] slots in the order in which they should be filled.
        Raises:
            PoolFull: there are not enough free pages; nothing was changed.
        """
        room = self._room_behind(after_slot, num_tokens)
        num_pages = -(-(num_tokens - room) // self.page_size)
        if num_pages > self._free.num_pages:
            raise PoolFull(num_pages, self._free.num_pages)
        runs = [(after_slot + 1, after_slot + 1 + room)] if room and after_slot is not None else []
        if num_pages:
            runs += self._take_pages(num_pages, num_tokens - room, after_slot)
        for start, stop in runs:
            self._state[start:stop] = OWNED
            self._tally.take((start, stop))
        slots = slots_of(runs)
        if self._holders is not None:
            self._holders.update(dict.fromkeys(slots.tolist(), holder))
        return slots

    def num_pages_for(self, num_tokens: int, after_slot: int | None = None) -> int:
        """Free pages that `alloc` with the same arguments would take."""
        room = self._room_behind(after_slot, num_tokens)
        return -(-(num_tokens - room) // self.page_size)

    def release(self, slots: Slots, *, idle: bool = False) -> None:
        """Release slots; pages without an owned slot become free.

        No running step may read them. `idle`: they are slots that `mark_idle` has counted.

        Raises:
            OwnershipError: a slot is free already, or is named twice; nothing was changed.
        """
        if len(slots) == 0:
            return
        runs = runs_of(slots)
        self._check_owned(slots, runs)
        for start, stop in runs:
            self._state[start:stop] = FREE
            first, last = self._tally.give((start, stop), idle=idle)
            if first < last:
                self._free.give(first, last - first)

    def mark_idle(self, slots: Slots, sign: int) -> None:
        """Book-keeping for the tree: cached slots that lose their last lease (+1) or gain one."""
        self._tally.mark_idle(slots, sign)

    def is_owned(self, slots: Slots) -> NDArray[np.bool_]:
        """For each slot, whether it is owned."""
        owned: NDArray[np.bool_] = self._state[slots] != FREE
        return owned

    def owned_slots(self) -> Slots:
        """All slots that are not free, in order."""
        return np.flatnonzero(self._state).astype(np.int32)

    def free_runs(self) -> list[tuple[int, int]]:
        """Slots [start, stop) of all free pages, in order."""
        size = self.page_size
        return [(start * size, stop * size) for start, stop in self._free.runs()]

    def free_pages(self) -> Slots:
        """All free pages, in order."""
        return slots_of(self._free.runs())

    def holder(self, slot: int) -> str:
        """Label of the slot's last allocation; empty unless holders are tracked."""
        return (self._holders or {}).get(slot, "")

    def _room_behind(self, after_slot: int | None, num_tokens: int) -> int:
        """Free slots after after_slot in its page, at most num_tokens."""
        if after_slot is None or self.page_size == 1:
            return 0
        stop = min((after_slot // self.page_size + 1) * self.page_size, after_slot + 1 + num_tokens)
        taken = np.flatnonzero(self._state[after_slot + 1 : stop])
        return int(taken[0]) if len(taken) else stop - after_slot - 1

    def _take_pages(
        self, num_pages: int, num_tokens: int, after_slot: int | None
    ) -> list[tuple[int, int]]:
        """Runs of num_tokens slots in free pages, from after_slot on if the next page is free."""
        pieces = []
        if after_slot is not None:
            start = after_slot // self.page_size + 1
            got = self._free.take_at(start, num_pages)
            if got:
                pieces.append((start, start + got))
        pieces += self._free.take(num_pages - sum(stop - start for start, stop in pieces))
        runs = [(start * self.page_size, stop * self.page_size) for start, stop in pieces]
        start, stop = runs[-1]
        runs[-1] = (start, stop - (num_pages * self.page_size - num_tokens))
        return runs

    def _check_owned(self, slots: Slots, runs: list[tuple[int, int]]) -> None:
        num_slots = sum(stop - start for start, stop in runs)
        num_owned = sum(
            int(np.count_nonzero(self._state[start:stop] == OWNED)) for start, stop in runs
        )
        if num_owned == num_slots == len(slots):
            return
        free = slots[self._state[slots] != OWNED]
        what = f"slot {free[0]} is free already" if len(free) else "a slot is named twice"
        last = self.holder(int(free[0])) if len(free) else ""
        raise OwnershipError(
            f"{len(slots)} slots cannot be released: {what}"
            f"{f' (last holder: {last})' if last else ''}; each is released once, by its owner"
        )
