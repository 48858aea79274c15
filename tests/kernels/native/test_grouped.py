"""Products with GGUF's own blocks: near the reference, the same bits on every instruction set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.native.grouped import BLOCKS, GroupedWeight, StoredRows
from radixlang.kernels.native.library import Library
from radixlang.kernels.reference.grouped import grouped_product

KINDS = {gguf.GGMLQuantizationType(kind).name: kind for kind in BLOCKS}
ROWS = [1, 2, 3, 4, 5, 8, 9, 13, 16, 33]
OUT, WIDTH = 53, 768  # neither is a multiple of what a unit takes, for kinds that let it be


@pytest.fixture
def on_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def stored(kind: int, rows: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Random bits in every field of every block; scales are what a model's may be."""
    size, num_bytes = BLOCKS[kind]
    source = np.random.default_rng(seed)
    blocks = source.integers(0, 256, (rows, width // size, num_bytes), np.uint8)
    for at in {2: (0,), 3: (0, 2), 6: (0,), 7: (0, 2), 8: (0,), 12: (0, 2), 13: (0, 2),
               14: (208,)}[kind]:  # fmt: skip
        halves = source.normal(0, 0.01, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def dequantised(kind: int, blocks: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType(kind)))


def inputs(rows: int, width: int = WIDTH) -> Tensor:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))
    x[:, :: width // 7] *= 50  # large channels, as a residual stream has
    x[:, 32:64] = 0
    return x


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_products_are_near_the_reference_and_the_same_on_every_set(
    every_native: list[Library], kind: int
) -> None:
    width = WIDTH if BLOCKS[kind][0] == 256 else WIDTH - 32
    blocks = stored(kind, OUT, width)
    x, weight = inputs(max(ROWS), width), dequantised(kind, blocks)
    exact = grouped_product(x, weight)
    size = x.abs().double() @ weight.abs().double().t()
    results = []
    for library in every_native:
        product = GroupedWeight(library, [StoredRows(kind, blocks)])
        found = product(x)
        assert ((found.double() - exact).abs() <= 2e-6 * size).all()
        for rows in ROWS:
            assert torch.equal(product(x[:rows]), found[:rows]), rows
            assert torch.equal(product(x[-rows:]), found[-rows:]), rows
        results.append(found)
    assert all(torch.equal(one, results[0]) for one in results)


def test_parts_of_several_kinds_are_columns_one_after_another(
    every_native: list[Library], on_threads: Callable[[int], None]
) -> None:
    parts = [StoredRows(kind, stored(kind, rows, 512, seed=rows))
             for kind, rows in ((2, 37), (14, 5), (12, 300))]  # fmt: skip
    x = inputs(33, 512)
    for library in every_native:
        whole = GroupedWeight(library, parts)
        apart = torch.cat([GroupedWeight(library, [part])(x) for part in parts], dim=1)
        assert whole.out_features == 342
        for threads in (1, 2, 5):
            on_threads(threads)
            assert torch.equal(whole(x), apart)
            assert torch.equal(whole(x[7:9]), apart[7:9])


def test_rows_come_in_the_order_that_is_asked_for(native: Library) -> None:
    blocks, x = stored(2, 40, 96), inputs(3, 96)
    order = np.random.default_rng(1).permutation(40)
    found = GroupedWeight(native, [StoredRows(2, blocks, order)])(x)
    assert torch.equal(found, GroupedWeight(native, [StoredRows(2, blocks)])(x)[:, order])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_rows_are_those_that_were_stored(every_native: list[Library], kind: int) -> None:
    blocks = stored(kind, 40, 512)
    numbers = torch.tensor([3, 39, 16, 3])
    for library in every_native:
        weight = GroupedWeight(library, [StoredRows(kind, blocks)])
        assert torch.equal(weight.rows(numbers), dequantised(kind, blocks)[numbers])
        assert weight.rows(numbers[:0]).shape == (0, 512)
        with pytest.raises(IndexError, match=r"\[40\] of a weight that has 40"):
            weight.rows(torch.tensor([40]))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_weight_takes_as_many_bytes_as_are_stored(native: Library, kind: int) -> None:
    blocks = stored(kind, 64, 1024)
    product = GroupedWeight(native, [StoredRows(kind, blocks)])
    assert blocks.nbytes <= product.num_bytes < blocks.nbytes + 256


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_is_lost_as_a_whole_and_alone(
    every_native: list[Library], bad: float
) -> None:
    x = inputs(6, 256)
    x[4, 250] = bad
    for library in every_native:
        found = GroupedWeight(library, [StoredRows(12, stored(12, 20, 256))])(x)
        assert found.isnan().any(1).tolist() == [False, False, False, False, True, False]
        assert found[4].isnan().all()


@pytest.mark.parametrize("at", [0, 17, 16 * 288 - 1])
def test_a_checksum_is_of_every_bit_and_the_same_on_every_set(
    every_native: list[Library], at: int
) -> None:
    blocks = stored(2, 16, 512)
    changed = blocks.copy()
    changed.reshape(-1)[at] ^= 128
    parts = [StoredRows(8, stored(8, 3, 512)), StoredRows(2, blocks)]
    sums = {GroupedWeight(library, parts).checksum for library in every_native}
    other = [parts[0], StoredRows(2, changed)]
    assert len(sums) == 1
    assert GroupedWeight(every_native[0], other).checksum not in sums


def test_blocks_of_another_kind_are_refused(native: Library) -> None:
    with pytest.raises(ValueError, match="of type 10 are none known here"):
        GroupedWeight(native, [StoredRows(10, np.zeros((4, 84), np.uint8))])
    with pytest.raises(ValueError, match="rows of 64 weights beside rows of 32"):
        GroupedWeight(native, [StoredRows(2, np.zeros((4, 18), np.uint8)),
                               StoredRows(2, np.zeros((4, 36), np.uint8))])  # fmt: skip
