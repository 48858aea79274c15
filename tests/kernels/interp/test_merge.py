"""tree_merge alone: log-sum-exps in base 2 inside and natural outside, emptiness, padding."""

from __future__ import annotations

import math

import pytest
import torch

from radixlang.kernels.gpu.tree_merge import tree_merge
from radixlang.kernels.reference.attention import merge_reference


def merge(
    outs: torch.Tensor, lses: torch.Tensor, counts: list[int], num_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """outs [parts, heads, d] and natural lses [parts, heads]; the rest of the batch is padding."""
    heads, dim = outs.shape[1:]
    count = torch.tensor(counts, dtype=torch.int32)
    first = (torch.cumsum(count, 0) - count).to(torch.int32)
    token = torch.arange(len(counts), dtype=torch.int32)
    out = torch.empty(num_tokens, heads, dim)
    lse = torch.empty(num_tokens, heads)
    rows = torch.tensor([len(counts)], dtype=torch.int32)
    tree_merge[(num_tokens, heads)](
        outs, lses * math.log2(math.e), out, lse, lse, token, first, count, rows, rows, heads,
        HEAD_DIM=dim, BLOCK_D=16, BLOCK_P=4, SINKS=False, WITH_LSE=True,
    )  # fmt: skip
    return out, lse


@pytest.mark.parametrize("parts", [2, 3, 4, 5, 9])
def test_matches_the_reference(parts: int) -> None:
    outs, lses = torch.randn(parts, 2, 12), torch.randn(parts, 2) * 5
    out, lse = merge(outs, lses, [parts], 1)
    expected, expected_lse = merge_reference(outs, lses)
    torch.testing.assert_close(out[0].double(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(lse[0].double(), expected_lse, rtol=0, atol=1e-5)


def test_empty_parts_weigh_nothing_and_all_empty_stays_empty() -> None:
    outs, lses = torch.randn(6, 1, 12), torch.randn(6, 1)
    lses[[1, 3, 4, 5]] = -torch.inf
    outs[[1, 3, 4, 5]] = 0.0
    out, lse = merge(outs, lses, [2, 2, 2], 3)
    torch.testing.assert_close(out[0, 0], outs[0, 0])
    torch.testing.assert_close(out[1, 0], outs[2, 0])
    assert (out[2] == 0).all()
    assert (lse[2] == -torch.inf).all()


def test_padding_is_zeros_even_over_nan_memory() -> None:
    outs, lses = torch.randn(2, 1, 12), torch.randn(2, 1)
    out, lse = merge(outs, lses, [2], 4)
    assert torch.isfinite(out[0]).all()
    assert (out[1:] == 0).all()
    assert (lse[1:] == -torch.inf).all()


def test_huge_differences_do_not_overflow() -> None:
    outs, lses = torch.randn(3, 1, 12), torch.tensor([[3e4], [-3e4], [3e4]])
    out, _ = merge(outs, lses, [3], 1)
    torch.testing.assert_close(out[0], (outs[0] + outs[2]) / 2)
