"""The allocator: contiguity, sharing of pages by slots, one owner a slot, releases in flight."""

from __future__ import annotations

import numpy as np
import pytest

from radixlang.errors import OwnershipError, ParameterError
from radixlang.runtime.cache.pages.free_list import FreeRuns
from radixlang.runtime.cache.pages.page_pool import PagePool, PoolFull
from radixlang.runtime.cache.pages.slots import runs_of

PAGE_SIZES = [1, 2, 7, 64, 256]


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_everything_comes_back(page_size: int) -> None:
    pool = PagePool(32, page_size)
    rng = np.random.default_rng(page_size)
    held = []
    for _ in range(300):
        want = int(rng.integers(1, 3 * page_size + 2))
        if pool.num_pages_for(want) <= pool.num_free_pages:
            held.append(pool.alloc(want))
        elif held:
            pool.release(held.pop(int(rng.integers(len(held)))))
    owned = np.concatenate(held)
    assert len(np.unique(owned)) == len(owned)
    assert sorted(owned) == list(pool.owned_slots())
    for slots in held:
        pool.release(slots)
    assert pool.num_free_pages == 32
    assert pool.num_free_runs == 1


@pytest.mark.parametrize("page_size", [0, 257, -1])
def test_page_sizes_out_of_range_are_refused(page_size: int) -> None:
    with pytest.raises(ParameterError, match="between 1 and 256"):
        PagePool(4, page_size)


def test_a_request_is_contiguous_where_memory_is() -> None:
    pool = PagePool(100)
    first, second = pool.alloc(30), pool.alloc(30)
    pool.release(first)
    assert runs_of(pool.alloc(35)) == [(60, 95)]
    assert runs_of(second) == [(30, 60)]
    assert len(runs_of(pool.alloc(35))) == 2  # 30 in front, 5 behind


def test_a_full_pool_refuses_and_changes_nothing() -> None:
    pool = PagePool(4, 8)
    pool.alloc(20)
    with pytest.raises(PoolFull) as error:
        pool.alloc(9)
    assert (error.value.needed, error.value.free) == (2, 1)
    assert "evict" in str(error.value)
    assert pool.num_free_pages == 1
    assert len(pool.alloc(8)) == 8


def test_allocation_continues_the_page_of_its_predecessor() -> None:
    pool = PagePool(4, 8)
    slots = pool.alloc(3)
    more = pool.alloc(10, after_slot=int(slots[-1]))
    assert list(more) == list(range(3, 13))
    assert pool.num_free_pages == 2


def test_only_one_of_two_branches_gets_the_rest_of_a_page() -> None:
    pool = PagePool(4, 8)
    last = int(pool.alloc(3)[-1])
    first, second = pool.alloc(4, after_slot=last), pool.alloc(4, after_slot=last)
    assert list(first) == [3, 4, 5, 6]
    assert not set(second) & {*range(8)}
    assert list(pool.alloc(1, after_slot=6)) == [7]


def test_a_page_is_free_only_when_nobody_owns_a_slot_of_it() -> None:
    pool = PagePool(2, 8)
    slots = pool.alloc(8)
    pool.release(slots[4:])
    assert pool.num_free_pages == 1
    assert list(pool.alloc(4, after_slot=3)) == [4, 5, 6, 7]
    pool.release(slots[:4])
    assert pool.num_free_pages == 1
    pool.release(slots[4:])
    assert pool.num_free_pages == 2


def test_one_token_slots_follow_their_predecessor_when_it_is_free() -> None:
    pool = PagePool(100)
    a, b = pool.alloc(10), pool.alloc(10)
    pool.release(b)
    assert list(pool.alloc(3, after_slot=int(a[-1]))) == [10, 11, 12]


@pytest.mark.parametrize("page_size", [1, 4])
def test_double_release_raises_and_changes_nothing(page_size: int) -> None:
    pool = PagePool(16, page_size, track_holders=True)
    slots = pool.alloc(8, holder="branch 7")
    pool.release(slots[:4])
    with pytest.raises(OwnershipError, match=r"slot 0 is free already \(last holder: branch 7\)"):
        pool.release(slots)
    with pytest.raises(OwnershipError, match="named twice"):
        pool.release(slots[[4, 5, 4]])
    assert list(pool.owned_slots()) == [4, 5, 6, 7]


def test_an_empty_pool_and_empty_requests() -> None:
    pool = PagePool(0)
    assert len(pool.alloc(0)) == 0
    pool.release(pool.alloc(0))
    with pytest.raises(PoolFull):
        pool.alloc(1)


def test_free_runs_join_both_neighbours() -> None:
    free = FreeRuns(10)
    assert free.take(10) == [(0, 10)]
    free.give(0, 3)
    free.give(6, 4)
    assert (free.num_runs, free.longest(), free.num_pages) == (2, 4, 7)
    free.give(3, 3)
    assert free.runs() == [(0, 10)]
    assert free.take_at(4, 2) == 0  # not the start of a run
    assert free.take_at(0, 2) == 2
    assert free.longest() == 8


def test_free_runs_keep_their_heap_small() -> None:
    free = FreeRuns(100)
    for _ in range(2000):
        start = free.take(1)[0][0]
        free.give(start, 1)
    assert len(free._heap) <= 2 * free.num_runs + 64


@pytest.mark.parametrize(
    ("slots", "runs"),
    [
        ([], []),
        ([5], [(5, 6)]),
        ([3, 4, 5], [(3, 6)]),
        ([5, 4, 3], [(3, 6)]),
        ([5, 1, 7], [(1, 2), (5, 6), (7, 8)]),
        ([1, 3, 2, 4], [(1, 5)]),
        ([2, 2], [(2, 3)]),
    ],
)
def test_runs(slots: list[int], runs: list[tuple[int, int]]) -> None:
    assert runs_of(np.array(slots, np.int32)) == runs
