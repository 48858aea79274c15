"""Products with float weights: near float64, the same bits in company and on every CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from radixlang.kernels.native.decoder import DenseWeight
from radixlang.kernels.native.library import Library

SHAPES = [(96, 64), (50, 37), (330, 576), (17, 600), (1, 1), (16, 257)]
ROWS = [1, 2, 3, 4, 5, 8, 13, 17, 70]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random(*size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_near_float64_and_the_same_on_every_set(
    every_native: list[Library], shape: tuple[int, int], dtype: torch.dtype
) -> None:
    values = (random(*shape, seed=1) / shape[1] ** 0.5).to(dtype)
    weights = [DenseWeight(library, values) for library in every_native]
    for rows in ROWS:
        x = random(rows, shape[1], seed=rows)
        found = weights[0](x)
        exact = x.double() @ values.double().t()
        torch.testing.assert_close(found.double(), exact, atol=2e-5, rtol=1e-5)
        assert all(torch.equal(other(x), found) for other in weights[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_and_company_leave_a_rows_bits(
    native: Library, threads: int, dtype: torch.dtype
) -> None:
    weight = DenseWeight(native, random(1500, 300, seed=1).to(dtype))
    wide = DenseWeight(native, random(1500, 300, seed=1).to(dtype).float())
    x = random(70, 300, seed=2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        whole = weight(x)
        assert torch.equal(wide(x), whole)
        for start, stop in [(0, 1), (5, 6), (4, 7), (3, 50), (40, 70)]:
            assert torch.equal(weight(x[start:stop]), whole[start:stop])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_weight_gives_its_rows_back_and_takes_its_bytes_once(
    native: Library, dtype: torch.dtype
) -> None:
    values = random(1000, 40, seed=1).to(dtype)
    weight = DenseWeight(native, values)
    assert torch.equal(weight.unpacked(), values)
    numbers = torch.tensor([7, 999, 0, 7])
    assert torch.equal(weight.rows(numbers), values[numbers])
    assert weight.num_bytes < 1.01 * 1008 * 40 * values.itemsize + 200
    with pytest.raises(IndexError, match="1000"):
        weight.rows(torch.tensor([1000]))


def test_nan_stays_in_its_row(native: Library) -> None:
    weight, x = DenseWeight(native, random(40, 30, seed=1)), random(6, 30, seed=2)
    whole = weight(x)
    x[2, 5] = torch.nan
    found = weight(x)
    assert found[2].isnan().all()
    assert torch.equal(found[[0, 1, 3, 4, 5]], whole[[0, 1, 3, 4, 5]])


def test_a_weight_of_another_kind_is_refused(native: Library) -> None:
    with pytest.raises(ValueError, match=r"torch.int8 \(4, 4\).*needs float32"):
        DenseWeight(native, torch.zeros(4, 4, dtype=torch.int8))
