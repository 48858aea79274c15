"""The tensors: copying, sizes, and probes that find bad numbers by node."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
import torch

from radixlang.errors import ParameterError
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.radix_tree import RadixTree
from radixlang.runtime.diagnostics.nan_scan import find_wild_nodes


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_bytes_a_token_are_those_of_the_tensors() -> None:
    cache = KVCache(10, 3, 2, 8, dtype=torch.bfloat16, num_cold_slots=5)
    exact = sum(t.nbytes for layer in (cache[i] for i in range(3)) for t in (layer.k, layer.v))
    assert cache.bytes_per_token * 10 == exact
    cold = [
        plane.nbytes
        for layer in (cache[i] for i in range(3))
        for plane in (layer.k_int8, layer.v_int8, layer.k_scale, layer.v_scale)
        if plane is not None
    ]
    assert cache.cold_bytes_per_token * 5 == sum(cold)


def test_slots_are_zeros_that_cost_nothing_but_their_page_when_written() -> None:
    cache = KVCache(1 << 17, 1, 2, 64, dtype=torch.bfloat16)  # 32 MB a tensor
    keys = cache[0].k
    assert int(keys[:: 1 << 12].count_nonzero()) == 0
    keys = KVCache(1 << 17, 1, 2, 64, dtype=torch.bfloat16)[0].k
    keys[1 << 16] = 1.0
    assert pages_in_memory(keys) == 1  # a huge page would be 512


def test_slots_given_back_are_zeros_again_without_memory() -> None:
    cache = KVCache(160, 2, 2, 64, dtype=torch.bfloat16)  # 16 slots a page of memory
    for layer in (cache[0], cache[1]):
        layer.k.fill_(1.0)
        layer.v.fill_(1.0)
    cache.give_back([(0, 32), (40, 72), (80, 90), (144, 160)])
    for layer in (cache[0], cache[1]):
        for plane in (layer.k, layer.v):
            assert pages_in_memory(plane) == 10 - 4
            zeros = np.flatnonzero((plane == 0).all(dim=2).all(dim=1).numpy())
            # Of a page that is free in part, all stays.
            assert zeros.tolist() == [*range(32), *range(48, 64), *range(144, 160)]


def pages_in_memory(tensor: torch.Tensor) -> int:
    start = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    num_bytes = tensor.data_ptr() + tensor.nbytes - start
    found = (ctypes.c_ubyte * -(-num_bytes // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None)
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(num_bytes), found) == 0
    return sum(each & 1 for each in found)


def test_moves_may_overlap() -> None:
    cache = KVCache(6, 2, 1, 2)
    cache.write(slots(0, 1, 2), torch.arange(24.0).view(2, 2, 3, 1, 2))
    before = cache.read(slots(0, 1, 2))
    cache.move(slots(0, 1, 2), slots(1, 2, 3))
    assert torch.equal(cache.read(slots(1, 2, 3)), before)
    cache.move(slots(3, 1, 2), slots(1, 2, 3))
    assert torch.equal(cache.read(slots(2, 3, 1)), before)


def test_numbers_of_another_shape_are_refused() -> None:
    cache = KVCache(6, 2, 1, 2)
    with pytest.raises(
        ParameterError, match=r"shape \(1, 2, 2, 1, 2\), expected \(2, 2, 2, 1, 2\)"
    ):
        cache.write(slots(0, 1), torch.zeros(1, 2, 2, 1, 2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1e5])
def test_probes_name_the_node_the_layer_and_the_tensor(bad: float) -> None:
    tree, cache = RadixTree(PagePool(8)), KVCache(8, 2, 1, 2)
    fine = tree.insert(tree.root(""), [1, 2], tree.pool.alloc(2)).node
    wild = tree.insert(fine, [3, 4], tree.pool.alloc(2)).node
    assert find_wild_nodes(tree, cache) == []
    cache[1].v[int(wild.slots[1])] = bad
    (found,) = find_wild_nodes(tree, cache)
    assert (found.start, found.end, found.layer, found.tensor) == (2, 4, 1, "v")
    assert str(found).startswith("node of tokens 2 to 4: |v| = ")
