"""An attention option that a backend does not know is refused, never dropped."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.gpu.layer import AttentionLayer
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.attention import NativeOptions
from radixlang.kernels.native.decoder import DecoderShape, Head, NativeDecoder
from radixlang.kernels.native.library import Library
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import chain


@dataclass(frozen=True, slots=True, eq=False)
class NewOptions(AttentionOptions):
    """Options with one that no backend has yet."""

    slope: float | None = None


def test_what_is_used_is_what_is_not_none() -> None:
    assert AttentionOptions(1.0).used == {"scale"}
    assert AttentionOptions(1.0, soft_cap=2.0, sinks=torch.zeros(1)).used == {
        "scale", "soft_cap", "sinks",
    }  # fmt: skip
    assert NewOptions(1.0, slope=0.5).used == {"scale", "slope"}


@pytest.mark.parametrize("backend", ["cpu", "reference", "native"])
def test_an_unknown_option_is_refused(native: Library, backend: str) -> None:
    batch = chain([0, 2], 0)
    plan = plan_attention(
        batch, num_heads=1, num_kv_heads=1, head_dim=8, backend=backend, library=native
    )
    pool = LayerKV(torch.zeros(2, 1, 8), torch.zeros(2, 1, 8))
    x = torch.ones(2, 1, 8)
    with pytest.raises(ValueError, match="with slope is not served"):
        attend(x, x, x, pool, plan, NewOptions(1.0, slope=0.5))
    assert attend(x, x, x, pool, plan, NewOptions(1.0)).shape == x.shape


def test_a_layer_of_the_kernels_and_a_native_decoder_refuse_it(native: Library) -> None:
    options = NewOptions(1.0, slope=0.5)
    with pytest.raises(ValueError, match="slope is not served by the Triton kernels"):
        AttentionLayer(1, 1, 8, options)
    with pytest.raises(ValueError, match="slope is not served by the native library"):
        NativeDecoder(
            native, DecoderShape(num_heads=1), [], Head(None),  # type: ignore[arg-type]
            options=[options], ropes=[], layer_rope=[],
        )  # fmt: skip


def test_sinks_of_another_number_of_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="sinks"):
        NativeOptions.of(AttentionOptions(1.0, sinks=torch.zeros(3)), 2)
