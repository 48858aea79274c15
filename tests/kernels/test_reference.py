"""The references themselves: partials merge to the whole, and emptiness stays empty."""

from __future__ import annotations

import torch

from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.reference.attention import merge_reference, partial_reference


def parts(visible: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 8), torch.randn(10, 2, 8), torch.randn(10, 2, 8)
    whole = partial_reference(q, k, v, visible, AttentionOptions(0.3))
    cuts = [slice(0, 4), slice(4, 5), slice(5, 10)]
    pieces = [partial_reference(q, k[c], v[c], visible[:, c], AttentionOptions(0.3)) for c in cuts]
    merged = merge_reference(
        torch.stack([o for o, _ in pieces]), torch.stack([lse for _, lse in pieces])
    )
    torch.testing.assert_close(merged[0], whole[0])
    torch.testing.assert_close(merged[1], whole[1])
    return merged


def test_partials_merge_to_the_whole() -> None:
    out, lse = parts(torch.ones(3, 10, dtype=torch.bool))
    assert torch.isfinite(out).all()
    assert torch.isfinite(lse).all()


def test_empty_partials_weigh_nothing_and_empty_rows_are_empty() -> None:
    """Two empty states once merged to NaN, and an empty one reported +inf."""
    visible = torch.zeros(3, 10, dtype=torch.bool)
    visible[0, 4] = True
    visible[1, :4] = True
    out, lse = parts(visible)
    assert (out[2] == 0).all()
    assert (lse[2] == -torch.inf).all()
    assert torch.isfinite(lse[:2]).all()
