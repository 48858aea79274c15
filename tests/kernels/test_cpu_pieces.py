"""Keys shared among threads: every key counts once, and the result does not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.cpu.backend import cpu_schedule
from radixlang.kernels.cpu.split_kv import LEAST, cut
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import attend_reference
from radixlang.kernels.tools.forests import level_forest, poisoned_pool

pytestmark = pytest.mark.usefixtures("nan_filled_memory")


@pytest.fixture
def eight_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cut asks how many threads there are; the arithmetic runs on those that there are."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)


@pytest.mark.parametrize(
    ("num_keys", "heads", "rows", "threads", "count"),
    [
        (640, 3, 3, 2, 1),  # too short for two pieces
        (768, 3, 3, 2, 2),  # three tasks on two threads
        (4096, 4, 3, 2, 1),  # four tasks fill two threads already
        (4096, 1, 4, 2, 2),
        (4096, 3, 3, 8, 8),
        (900, 3, 3, 8, 2),
        (4096, 3, 96, 2, 1),  # nine blocks of rows: little would be won
        (4096, 3, 3, 1, 1),
    ],
)
def test_pieces_are_cut_only_where_threads_would_idle(
    num_keys: int,
    heads: int,
    rows: int,
    threads: int,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    pieces = cut(num_keys, heads, rows)
    assert (1 if pieces is None else pieces.count) == count


@pytest.mark.parametrize("extra", range(8))
@pytest.mark.usefixtures("eight_threads")
def test_pieces_cover_every_key_once(extra: int) -> None:
    num_keys = 8 * LEAST + extra
    pieces = cut(num_keys, 1, 1)
    assert pieces is not None
    times = np.zeros(num_keys, dtype=np.int64)
    for piece in range(pieces.count):
        keys = piece * pieces.step + np.arange(pieces.length)
        seen = np.ones(pieces.length, dtype=np.bool_)
        if pieces.mask is not None:
            seen = (pieces.mask[piece, 0, 0] == 0).numpy()
        times[keys[seen]] += 1
    assert (times == 1).all()


def error_of(batch: TreeBatch, *, sinks: bool = False, dtype: torch.dtype = torch.float32) -> float:
    plan = plan_attention(batch, num_heads=6, num_kv_heads=2, head_dim=16)
    k_pool, v_pool = poisoned_pool(batch, 2, 16, dtype=dtype)
    q = torch.randn(plan.num_tokens, 6, 16).to(dtype)
    k, v = torch.randn(2, plan.num_tokens, 2, 16).to(dtype)
    sink = torch.randn(6) if sinks else None
    out = attend(q, k, v, LayerKV(k_pool, v_pool), plan, AttentionOptions(0.25, sinks=sink))
    expected = attend_reference(q, k_pool, v_pool, batch, AttentionOptions(0.25, sinks=sink))
    return float((out - expected).abs().max())


@pytest.mark.parametrize("length", [768, 1000, 1001, 3079])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.usefixtures("eight_threads")
def test_a_lone_branch_in_pieces(length: int, sinks: bool) -> None:
    assert error_of(level_forest((1,), (length,)), sinks=sinks) < 1e-6


@pytest.mark.parametrize("branches", [2, 5])
@pytest.mark.usefixtures("eight_threads")
def test_a_shared_node_in_pieces(branches: int) -> None:
    batch = level_forest((1, branches), (1603, 21))
    plan = plan_attention(batch, num_heads=6, num_kv_heads=2, head_dim=16)
    assert cpu_schedule(plan, None).rest[0].keys.pieces  # type: ignore[union-attr]
    assert error_of(batch) < 1e-6


@pytest.mark.usefixtures("eight_threads")
def test_half_precision_is_left_whole_or_merged_in_float32() -> None:
    assert error_of(level_forest((1,), (1601,)), dtype=torch.bfloat16) < 8e-3
    assert error_of(level_forest((1, 3), (1601, 9)), dtype=torch.bfloat16) < 8e-3


@pytest.mark.usefixtures("eight_threads")
def test_pieces_follow_a_decoding_branch() -> None:
    """From one key below two pieces to well into them, every step equals a plan built anew."""
    start, steps = 2 * LEAST - 2, 6
    slots = np.arange(start + steps, dtype=np.int32)
    zero = np.zeros(1, dtype=np.int32)

    def batch(length: int) -> TreeBatch:
        return TreeBatch([slots[:length]], zero - 1, zero, zero, zero + length - 1, zero + 1)

    def plan_of(length: int):  # type: ignore[no-untyped-def]
        return plan_attention(batch(length), num_heads=6, num_kv_heads=2, head_dim=16)

    k_pool, v_pool = poisoned_pool(batch(start + steps), 2, 16)
    plan, counts = plan_of(start), []
    for length in range(start, start + steps):
        q, k, v = torch.randn(1, 6, 16), *torch.randn(2, 1, 2, 16)
        pool = LayerKV(k_pool, v_pool)
        out = attend(q, k, v, pool, plan, AttentionOptions(0.25))
        assert torch.equal(out, attend(q, k, v, pool, plan_of(length), AttentionOptions(0.25)))
        expected = attend_reference(q, k_pool, v_pool, batch(length), AttentionOptions(0.25))
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-6)
        pieces = cpu_schedule(plan, None).alone.pieces
        counts.append(1 if pieces is None else pieces.count)
        if length < start + steps - 1:
            plan.advance(np.array([length], dtype=np.int32))
    assert counts == [1, 1, 2, 2, 2, 2]
