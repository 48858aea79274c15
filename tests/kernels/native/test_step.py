"""A whole decoder step: the same bits on every instruction set, alone, in chunks and in company."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.attention import plan_attention
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.backend import NativeBackend
from radixlang.kernels.native.decoder import (
    AnyWeight,
    DecoderShape,
    DenseWeight,
    Head,
    LayerWeights,
    NativeDecoder,
    Rope,
    Rotation,
    Weight,
)
from radixlang.kernels.native.grouped import GroupedWeight, StoredRows
from radixlang.kernels.native.library import Library
from radixlang.kernels.native.low_rank import LowRankPair, NativeAdapters, NativeVariant
from radixlang.kernels.native.step import NativePools
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import TreeBatch

HEADS, KV_HEADS, DIM, HIDDEN, INNER, VOCAB, LAYERS = 4, 2, 24, 96, 160, 53, 2
NUM_TOKENS = 150  # more than threads share as one


def random(*size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


KINDS = ["8-bit", "blocks", "float32", "bfloat16"]


def weight(
    library: Library, kind: str, out: int, width: int, seed: int, added: Sequence[LowRankPair] = ()
) -> AnyWeight:
    values = random(out, width, seed=seed)
    if kind == "blocks":
        return GroupedWeight(library, mixed_rows(values / width**0.5))
    if kind != "8-bit":
        values = values / width**0.5
        for pair in added:
            values[pair.column : pair.column + pair.b.shape[1]] += 0.7 * pair.b.t() @ pair.a
        return DenseWeight(library, values.to(getattr(torch, kind)))
    scale = values.abs().amax(1) / 127
    return Weight(library, (values / scale[:, None]).round().to(torch.int8), scale / width**0.5)


def mixed_rows(values: Tensor) -> list[StoredRows]:
    """Rows in GGUF's blocks: some of every type that may stand beside others in one product."""
    kinds = [gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q5_1", "Q8_0")]
    parts = zip(kinds, np.array_split(values.numpy(), len(kinds)), strict=True)
    return [StoredRows(int(kind), gguf.quantize(rows, kind)) for kind, rows in parts]


def decoder(
    library: Library, kind: str, added: Sequence[Sequence[LowRankPair]] = ()
) -> NativeDecoder:
    held = [*added] or [()] * 4 * LAYERS
    parts = 2 if kind == "8-bit" else 1
    shape = DecoderShape(
        num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, hidden_size=HIDDEN,
        intermediate_size=INNER, stream_block=1, inner_block=32, value_parts=parts, norm_eps=1e-6,
    )  # fmt: skip
    columns = (HEADS + (1 + parts) * KV_HEADS) * DIM
    layers = [
        LayerWeights(
            qkv=weight(library, kind, columns, HIDDEN, index, held[4 * index]),
            o=weight(library, kind, HIDDEN, HEADS * DIM, index + 10, held[4 * index + 1]),
            gate_up=weight(library, kind, 2 * INNER, HIDDEN, index + 20, held[4 * index + 2]),
            down=weight(library, kind, HIDDEN, INNER, index + 30, held[4 * index + 3]),
            mlp_post_gain=random(HIDDEN, seed=index + 40),
        )
        for index in range(LAYERS)
    ]
    rotation = Rotation(random(HIDDEN, seed=50).sign(), torch.eye(3)[[2, 0, 1]])
    return NativeDecoder(
        library, shape, layers, Head(weight(library, kind, VOCAB, HIDDEN, 60), soft_cap=30.0),
        options=[AttentionOptions(DIM**-0.5, None if each else 40) for each in range(LAYERS)],
        ropes=[Rope(10000.0 ** -(torch.arange(DIM // 2) / (DIM // 2)))], layer_rope=[0] * LAYERS,
        after_embed=rotation,
    )  # fmt: skip


class Text:
    """One text in a pool of its own, written chunk by chunk."""

    def __init__(self, library: Library, kind: str, *, adapted: bool = False) -> None:
        self._variants = [variant(seed) for seed in (80, 90)] if adapted else []
        self._decoder, self._library = decoder(library, kind), library
        size = (NUM_TOKENS + 60, KV_HEADS, DIM)
        self._kv = [LayerKV(torch.full(size, torch.nan), torch.full(size, torch.nan))
                    for _ in range(LAYERS)]  # fmt: skip
        self._embedded = random(NUM_TOKENS, HIDDEN, seed=70)

    def run(self, start: int, stop: int, num_branches: int = 1) -> Tensor:
        """Logits [num_branches, stop - start, VOCAB] of new tokens behind those before them."""
        num = stop - start
        tails = [np.arange(start, stop) if not i else NUM_TOKENS + num * i + np.arange(num)
                 for i in range(num_branches)]  # fmt: skip
        shared = [np.arange(start, dtype=np.int32)] if start else []
        plan = plan_attention(
            TreeBatch(
                segment_slots=[*shared, *(tail.astype(np.int32) for tail in tails)],
                segment_parent=np.array([-1] * len(shared) + [len(shared) - 1] * len(tails), "i4"),
                segment_start=np.array([0] * len(shared) + [start] * len(tails), np.int32),
                branch_segment=np.arange(len(shared), len(shared) + len(tails), dtype=np.int32),
                branch_query_start=np.full(len(tails), start, np.int32),
                branch_num_queries=np.full(len(tails), num, np.int32),
            ),
            num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, library=self._library,
        )  # fmt: skip
        assert isinstance(plan.backend, NativeBackend)
        stream = self._embedded[start:stop].repeat(num_branches, 1)
        pools = NativePools().of(self._kv, LAYERS)
        added = self._adapters(np.tile(np.arange(start, stop), num_branches))
        self._decoder.step(stream, plan.backend.plan, pools, added)
        return self._decoder.logits(stream).view(num_branches, num, VOCAB)

    def _adapters(self, positions: NDArray[np.int64]) -> NativeAdapters | None:
        """Of three tokens in a row one has no adapter, and the others one each."""
        if not self._variants:
            return None
        return NativeAdapters(
            [(each, np.flatnonzero(positions % 3 == i).astype(np.int32))
             for i, each in enumerate(self._variants)]
        )  # fmt: skip


def pairs(seed: int, scale: float) -> list[list[LowRankPair]]:
    """Pairs for all products but one: several ranks, and outputs that are no multiple of 16."""
    first, key = HEADS * DIM, KV_HEADS * DIM
    sizes = [[(first, 5, HIDDEN, 0), (key - 1, 9, HIDDEN, first + key)], [(HIDDEN, 1, first, 0)],
             [(2 * INNER, 4, HIDDEN, 0)], [(HIDDEN, 19, INNER, 0)]]  # fmt: skip
    found = [
        [LowRankPair(random(rank, width, seed=seed) * (scale / width**0.5),
                     random(rank, out, seed=seed + 1) / rank**0.5, column)
         for out, rank, width, column in place]
        for place in sizes * LAYERS
    ]  # fmt: skip
    found[4] = []
    return found


def variant(seed: int) -> NativeVariant:
    return NativeVariant(pairs(seed, 1 / 127), 0.7)


@pytest.fixture
def on_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("adapted", [False, True], ids=["plain", "adapted"])
@pytest.mark.parametrize("kind", KINDS)
def test_cutting_a_text_leaves_its_bits(
    every_native: list[Library], on_threads: Callable[[int], None], kind: str, adapted: bool
) -> None:
    on_threads(2)
    whole = Text(every_native[0], kind, adapted=adapted).run(0, NUM_TOKENS)[0]
    assert whole.isfinite().all()
    assert torch.equal(whole, Text(every_native[0], kind).run(0, NUM_TOKENS)[0]) != adapted
    for library in every_native:
        for threads in (1, 3):
            on_threads(threads)
            text = Text(library, kind, adapted=adapted)
            assert torch.equal(text.run(0, NUM_TOKENS)[0], whole)
        text = Text(library, kind, adapted=adapted)
        cuts = (0, 1, 2, 66, 100, 103, NUM_TOKENS)
        parts = [text.run(*cut)[0] for cut in pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("adapted", [False, True], ids=["plain", "adapted"])
@pytest.mark.parametrize("kind", KINDS)
def test_company_leaves_a_rows_bits(native: Library, kind: str, adapted: bool) -> None:
    text = Text(native, kind, adapted=adapted)
    whole = text.run(0, NUM_TOKENS)[0]
    for branch in text.run(100, 104, num_branches=12):
        assert torch.equal(branch, whole[100:104])


def test_a_stream_of_other_rows_than_the_plan_is_refused(native: Library) -> None:
    text = Text(native, KINDS[0])
    text._embedded = text._embedded[:, :-1]
    with pytest.raises(ValueError, match=r"stream is \(4, 95\).*needs \(4, 96\)"):
        text.run(0, 4)


def test_pairs_are_what_they_would_be_in_the_weights(native: Library) -> None:
    """A step with pairs on every row equals one whose dense weights hold them."""
    added, every = pairs(80, 1.0), np.arange(NUM_TOKENS, dtype=np.int32)
    beside, inside = Text(native, "float32", adapted=True), Text(native, "float32")
    beside._adapters = lambda _: NativeAdapters([(NativeVariant(added, 0.7), every)])  # type: ignore[method-assign]
    inside._decoder = decoder(native, "float32", added)
    found, wanted = (text.run(0, NUM_TOKENS)[0] for text in (beside, inside))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
