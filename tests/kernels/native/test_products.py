"""8-bit products: exact sums on every instruction set, a row's bits the same in any company."""

from __future__ import annotations

import pytest
import torch

from radixlang.kernels.native.decoder import LARGEST, Weight
from radixlang.kernels.native.library import Library

SHAPES = [(96, 64), (50, 37), (330, 576), (17, 200), (1, 1), (160, 130)]
ROWS = [1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 70]


def quantized_of(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    quantized = torch.randint(-127, 128, (rows, columns), generator=generator).to(torch.int8)
    quantized[::3] = 127  # sums as large as they get
    quantized[1::7] = -127
    return quantized


def scales(rows: int) -> torch.Tensor:
    return torch.rand(rows, generator=torch.Generator().manual_seed(5)) + 0.5


def expected(quantized: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    sums = (quantized.double() @ weight.double().t()).float()  # exact before the one rounding
    return sums * (scale / LARGEST)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_the_exact_sums_times_one_factor(
    every_native: list[Library], shape: tuple[int, int]
) -> None:
    weight, scale = quantized_of(*shape, seed=1), scales(shape[0])
    for library in every_native:
        product = Weight(library, weight, scale)
        for rows in ROWS:
            quantized = quantized_of(rows, shape[1], seed=rows)
            assert torch.equal(product(quantized), expected(quantized, weight, scale)), rows


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_and_company_leave_a_rows_bits(native: Library, threads: int) -> None:
    weight, scale = quantized_of(1500, 300, seed=1), scales(1500)
    product, quantized = Weight(native, weight, scale), quantized_of(70, 300, seed=2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        whole = product(quantized)
        assert torch.equal(whole, expected(quantized, weight, scale))
        for start, stop in [(0, 1), (5, 6), (4, 7), (3, 50), (40, 70)]:
            assert torch.equal(product(quantized[start:stop]), whole[start:stop])
    finally:
        torch.set_num_threads(before)


def test_a_weight_takes_its_levels_once(native: Library) -> None:
    product = Weight(native, quantized_of(1024, 640, seed=1), scales(1024))
    assert product.num_bytes < 1.01 * (1024 * 640 + 1024 * 4)


def test_a_weight_of_another_kind_is_refused(native: Library) -> None:
    with pytest.raises(ValueError, match=r"torch.float32 \(4, 4\).*needs int8"):
        Weight(native, torch.zeros(4, 4), torch.ones(4))
