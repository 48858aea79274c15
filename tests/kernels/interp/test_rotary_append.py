"""Rotary and append in one launch, against plain torch and against the two steps apart."""

from __future__ import annotations

import pytest
import torch

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.gpu import launch as gpu
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.reference.fused import rotary_append_reference, rotate_heads
from radixlang.kernels.tools.forests import level_forest, poisoned_pool

SLOTS = torch.tensor([7, -1, 2])  # the middle one is padding
LIMITS = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
# (the interpreter cuts bf16 off where devices round, so the last bit may differ)
UNTOUCHED = [0, 1, 3, 4, 5, 6, 8]


def rotations_of(num_tokens: int, pairs: int) -> torch.Tensor:
    return torch.polar(torch.ones(num_tokens, pairs), 6.0 * torch.rand(num_tokens, pairs))


def pool_of(dim: int, dtype: torch.dtype) -> LayerKV:
    exact = [torch.full((9, 2, dim), torch.nan, dtype=dtype) for _ in range(2)]
    planes = [torch.full((9, 2, dim), 99, dtype=torch.int8) for _ in range(2)]
    scales = [torch.full((9, 2), torch.nan) for _ in range(2)]
    return LayerKV(*exact, *planes, *scales)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(("dim", "rotary"), [(16, 16), (64, 32), (80, 80), (96, 24)])
@pytest.mark.parametrize("quantize", [False, True])
def test_it_is_the_reference(
    dtype: torch.dtype, halves: bool, dim: int, rotary: int, quantize: bool
) -> None:
    fused = torch.randn(3, 10, dim).to(dtype)  # q, k and v are slices of one projection
    q, k, v = fused[:, :6], fused[:, 6:8], fused[:, 8:]
    rotations, mine, theirs = rotations_of(3, rotary // 2), pool_of(dim, dtype), pool_of(dim, dtype)
    choice = {"halves": halves, "quantize": quantize}
    out = gpu.rotary_append(mine, SLOTS, q, k, v, rotations, **choice)
    expected = rotary_append_reference(theirs, SLOTS, q, k, v, rotations, **choice)
    limit = LIMITS[dtype]
    torch.testing.assert_close(out, expected, rtol=limit, atol=limit)
    for a, b in ((mine.k, theirs.k), (mine.v, theirs.v)):
        torch.testing.assert_close(a, b, rtol=limit, atol=limit, equal_nan=True)
        assert torch.isnan(a[UNTOUCHED]).all()
    for a, b in ((mine.k_int8, theirs.k_int8), (mine.v_int8, theirs.v_int8)):
        assert a is not None
        assert b is not None
        assert int((a.int() - b.int()).abs().max()) <= 1
        assert (a[UNTOUCHED] == 99).all()
    torch.testing.assert_close(mine.k_scale, theirs.k_scale, rtol=limit, atol=0, equal_nan=True)


def test_halves_are_pairs_in_another_order() -> None:
    heads, rotations = torch.randn(3, 2, 16), rotations_of(3, 8)
    order = torch.stack((torch.arange(8), torch.arange(8) + 8), 1).flatten()
    by_pairs = rotate_heads(heads[..., order], rotations)
    torch.testing.assert_close(by_pairs, rotate_heads(heads, rotations, halves=True)[..., order])


def test_attend_rotates_on_the_way() -> None:
    batch = level_forest((1, 3), (40, 5))
    plan = plan_attention(batch, num_heads=4, num_kv_heads=2, head_dim=16, backend="triton")
    fused, rotations = torch.randn(3, 8, 16), rotations_of(3, 8)
    q, k, v = fused[:, :4], fused[:, 4:6], fused[:, 6:]
    pools = [LayerKV(*poisoned_pool(batch, 2, 16)) for _ in range(2)]
    out = attend(q, k, v, pools[0], plan, AttentionOptions(0.25), rotations=rotations)
    rotated_q, rotated_k = rotate_heads(q, rotations), rotate_heads(k, rotations)
    expected = attend(rotated_q.contiguous(), rotated_k, v, pools[1], plan, AttentionOptions(0.25))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)


def test_a_plan_for_the_cpu_does_not_rotate() -> None:
    batch = level_forest((1,), (5,))
    plan = plan_attention(batch, num_heads=4, num_kv_heads=2, head_dim=16)
    q, k = torch.randn(1, 4, 16), torch.randn(1, 2, 16)
    pool = LayerKV(*poisoned_pool(batch, 2, 16))
    with pytest.raises(ValueError, match="rotate q and k first"):
        attend(q, k, k, pool, plan, AttentionOptions(1.0), rotations=rotations_of(1, 8))
