"""The allocator of the KV pool: which slots are free, and who counts on the others.

A slot holds the keys and values of one token in every layer; a page is `page_size` slots side by
side, and the unit of allocation. Attention reads slots, not pages, so a page may be shared in
parts: when a prompt matches half a page, the match simply refers to those slots, and somebody
else may own the other half. Nothing is copied. A page is free when nobody owns a slot of it.

This file knows neither tensors nor tokens. One thread owns a pool; nothing here locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from radixlang.errors import OwnershipError, ParameterError, PoolExhaustedError
from radixlang.runtime.free_runs import FreeRuns

Slots = NDArray[np.int32]
NO_SLOTS: Slots = np.empty(0, np.int32)


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
    """Counts references to slots and hands out pages.

    Args:
        num_pages: capacity in pages.
        page_size: slots a page, 1 to 256.
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
        self._refs = np.zeros(num_pages * page_size, np.int32)  # by slot
        # by page: references, and those of cached nodes without and with a lease
        self._owned = self._refs if page_size == 1 else np.zeros(num_pages, np.int32)
        self._idle = np.zeros(num_pages, np.int32)
        self._leased = np.zeros(num_pages, np.int32)
        self.num_evictable_pages = 0
        self.num_protected_pages = 0
        self._deferred: list[Slots] = []
        self._num_steps_in_flight = 0
        self._holders: dict[int, str] | None = {} if track_holders else None

    @property
    def num_free_pages(self) -> int:
        """Pages of which nobody owns a slot."""
        return self._free.num_pages

    @property
    def num_slots(self) -> int:
        """Capacity in tokens."""
        return len(self._refs)

    @property
    def num_free_runs(self) -> int:
        """Pieces that the free memory is in: 1 means no fragmentation."""
        return self._free.num_runs

    @property
    def longest_free_run(self) -> int:
        """Pages of the longest stretch of free memory."""
        return self._free.longest()

    def alloc(self, num_tokens: int, *, after_slot: int | None = None, holder: str = "") -> Slots:
        """Slots for num_tokens, each with one reference, contiguous where possible.

        With `after_slot`, allocation continues behind that slot: in the rest of its page, then
        in the next page when it is free.

        Returns:
            int32 [num_tokens] slots in the order in which they should be filled.
        Raises:
            PoolFull: not enough free pages; nothing was changed.
        """
        first = self._room_behind(after_slot, num_tokens)
        num_pages = -(-(num_tokens - len(first)) // self.page_size)
        if num_pages > self._free.num_pages:
            raise PoolFull(num_pages, self._free.num_pages)
        slots = self._take_room(first)
        if num_pages:
            rest = self._take_pages(num_pages, after_slot)[: num_tokens - len(first)]
            self._refs[rest] = 1
            if self.page_size > 1:
                np.add.at(self._owned, rest // self.page_size, 1)
            slots = rest if not len(slots) else np.concatenate((slots, rest))
        if self._holders is not None:
            self._holders.update(dict.fromkeys(slots.tolist(), holder))
        return slots

    def num_pages_for(self, num_tokens: int, after_slot: int | None = None) -> int:
        """Free pages that `alloc` with the same arguments would take."""
        room = len(self._room_behind(after_slot, num_tokens))
        return -(-(num_tokens - room) // self.page_size)

    def retain(self, slots: Slots) -> None:
        """Add a reference to each slot. Raises OwnershipError when one of them is free."""
        if len(slots) == 0:
            return
        self._check_owned(slots, "retained")
        if self.page_size > 1:
            self._refs[slots] += 1
        self._shift(slots, owned=1)

    def release(self, slots: Slots) -> None:
        """Give up a reference to each slot; pages without any become free.

        While a step is in flight, the slots stay owned until it has ended.

        Raises:
            OwnershipError: a slot is free already, or is named twice; nothing was changed.
        """
        if len(slots) == 0:
            return
        self._check_owned(slots, "released")
        if self._num_steps_in_flight:
            self._deferred.append(np.array(slots, np.int32))
        else:
            self._release_now(slots)

    @contextmanager
    def step_in_flight(self) -> Iterator[None]:
        """Within this context releases wait, so that no page is freed while a step reads it."""
        self.begin_step()
        try:
            yield
        finally:
            self.end_step()

    def begin_step(self) -> None:
        """A step that reads slots has been launched: releases wait for its end."""
        self._num_steps_in_flight += 1

    def end_step(self) -> None:
        """A step has ended; with the last of them, the releases that waited take effect."""
        if not self._num_steps_in_flight:
            raise OwnershipError("end_step() without begin_step(): no step is in flight")
        self._num_steps_in_flight -= 1
        if not self._num_steps_in_flight:
            deferred, self._deferred = self._deferred, []
            for slots in deferred:
                self._release_now(slots)

    def mark_cached(self, slots: Slots, *, idle: int = 0, leased: int = 0) -> None:
        """Book-keeping for the tree: its references by page, without (idle) and with a lease."""
        if len(slots):
            self._shift(slots, idle=idle, leased=leased)

    def deferred_slots(self) -> Slots:
        """Slots whose release waits for the step in flight."""
        return np.concatenate(self._deferred) if self._deferred else NO_SLOTS

    def num_references(self, slots: Slots) -> NDArray[np.int32]:
        """References by slot."""
        return self._refs[slots]

    def owned_slots(self) -> Slots:
        """All slots with a reference, in order."""
        return np.flatnonzero(self._refs).astype(np.int32)

    def free_pages(self) -> Slots:
        """All free pages, in order."""
        runs = [np.arange(start, stop, dtype=np.int32) for start, stop in self._free.runs()]
        return np.concatenate(runs) if runs else NO_SLOTS

    def holder(self, slot: int) -> str:
        """Label of the slot's last allocation; empty unless holders are tracked."""
        return (self._holders or {}).get(slot, "")

    def _room_behind(self, after_slot: int | None, num_tokens: int) -> Slots:
        """Unowned slots behind after_slot in its page, at most num_tokens."""
        if after_slot is None or self.page_size == 1:
            return NO_SLOTS
        stop = min((after_slot // self.page_size + 1) * self.page_size, after_slot + 1 + num_tokens)
        taken = np.flatnonzero(self._refs[after_slot + 1 : stop])
        stop = after_slot + 1 + int(taken[0]) if len(taken) else stop
        return np.arange(after_slot + 1, stop, dtype=np.int32)

    def _take_room(self, slots: Slots) -> Slots:
        if len(slots):
            self._refs[slots] = 1
            self._shift(slots, owned=1)
        return slots

    def _take_pages(self, num_pages: int, after_slot: int | None) -> Slots:
        """All slots of num_pages free pages, beginning behind after_slot if that page is free."""
        pieces = []
        if after_slot is not None:
            start = after_slot // self.page_size + 1
            got = self._free.take_at(start, num_pages)
            if got:
                pieces.append((start, start + got))
                num_pages -= got
        pieces += self._free.take(num_pages)
        size = self.page_size
        runs = [np.arange(start * size, stop * size, dtype=np.int32) for start, stop in pieces]
        return runs[0] if len(runs) == 1 else np.concatenate(runs)

    def _check_owned(self, slots: Slots, verb: str) -> None:
        pending = self.deferred_slots()
        refs = self._refs[slots]
        if len(pending):
            refs = refs - np.isin(slots, pending)
        ordered = np.sort(slots)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        free = slots[refs <= 0]
        if len(free) or len(twice):
            what = f"slot {free[0]} is free" if len(free) else f"slot {twice[0]} is named twice"
            last = self.holder(int((free if len(free) else twice)[0]))
            whose = f" (last holder: {last})" if last else ""
            raise OwnershipError(
                f"{len(slots)} slots cannot be {verb}: {what}{whose}; "
                "every reference is released exactly once"
            )

    def _release_now(self, slots: Slots) -> None:
        if self.page_size > 1:
            self._refs[slots] -= 1
        pages = self._shift(slots, owned=-1)
        self._give(np.sort(pages[self._owned[pages] == 0]))

    def _give(self, pages: Slots) -> None:
        if not len(pages):
            return
        breaks = np.flatnonzero(pages[1:] != pages[:-1] + 1) + 1
        starts = pages[np.concatenate(([0], breaks))].tolist()
        stops = pages[np.concatenate((breaks - 1, [len(pages) - 1]))].tolist()
        for start, stop in zip(starts, stops, strict=True):
            self._free.give(start, stop - start + 1)

    def _shift(self, slots: Slots, *, owned: int = 0, idle: int = 0, leased: int = 0) -> Slots:
        """Change the counts of the pages of distinct slots; returns those pages, distinct."""
        pages, times = self._pages(slots)
        evictable, protected = self._classify(pages)
        if owned:
            self._owned[pages] += owned * times
        if idle:
            self._idle[pages] += idle * times
        if leased:
            self._leased[pages] += leased * times
        now_evictable, now_protected = self._classify(pages)
        self.num_evictable_pages += now_evictable - evictable
        self.num_protected_pages += now_protected - protected
        return pages

    def _pages(self, slots: Slots) -> tuple[Slots, NDArray[np.int32] | int]:
        if self.page_size == 1:
            return slots, 1
        pages, times = np.unique(slots // self.page_size, return_counts=True)
        return pages, times.astype(np.int32)

    def _classify(self, pages: Slots) -> tuple[int, int]:
        """How many of the pages hold nothing but idle cached slots, and how many a leased one."""
        owned, idle = self._owned[pages], self._idle[pages]
        evictable = int(np.count_nonzero((idle == owned) & (owned > 0)))
        return evictable, int(np.count_nonzero(self._leased[pages]))
