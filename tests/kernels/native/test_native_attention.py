"""Attention of the native library: right by float64, and a row's bits are its own path's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.attention import NativeAttentionPlan, NativeKV
from radixlang.kernels.native.library import Library
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import TreeBatch, chain, check_batch
from radixlang.kernels.reference.attention import attend_reference
from radixlang.kernels.tools.forests import level_forest, new_slots_of, random_forest
from tests.kernels.native.forest_cases import (
    Case,
    alone,
    dequantized,
    make_case,
    moved,
    quantized_case,
    rows_of,
)

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)
WINDOWS = st.sampled_from([None, None, 1, 5, 64, 100])
CAPS = st.sampled_from([None, None, 20.0])
QUERIES = st.sampled_from([1, 1, 4, 70])
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
# query heads, kv heads, head_dim
SHAPES = st.sampled_from(
    [((9, 3), 64), ((4, 1), 40), ((6, 2), 16), ((8, 8), 24), ((20, 1), 8), ((4, 1), 256)]
)
forests = settings(
    max_examples=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


def error_of(case: Case, out: torch.Tensor, kv: LayerKV | None = None) -> float:
    """Largest error against float64, relative to the largest value."""
    kv = kv or case.layer_kv
    options = AttentionOptions(**({"scale": case.q.shape[2] ** -0.5} | case.options))
    expected = attend_reference(case.q, kv.k, kv.v, case.batch, options)
    return float((out - expected).abs().max() / expected.abs().max().clamp(min=1))


def random_case(
    seed: int,
    queries: int,
    dtype: torch.dtype = torch.bfloat16,
    shape: tuple[tuple[int, int], int] = ((9, 3), 16),
    *,
    quantized: bool = False,
    sinks: bool = False,
    **options: float | None,
) -> Case:
    rng = np.random.default_rng(seed)
    batch = random_forest(rng, max_queries=queries, longest=300, quantized=quantized)
    logits = torch.from_numpy(rng.normal(size=shape[0][0])).float() if sinks else None
    return make_case(
        batch, heads=shape[0], head_dim=shape[1], dtype=dtype, seed=seed % 1000,
        sinks=logits, **options,
    )  # fmt: skip


@forests
@given(SEEDS, QUERIES, DTYPES, SHAPES, WINDOWS, CAPS, st.booleans(), st.sampled_from([1, 2, 4]))
def test_random_forests_match_float64(
    native: Library,
    seed: int,
    queries: int,
    dtype: torch.dtype,
    shape: tuple[tuple[int, int], int],
    window: int | None,
    soft_cap: float | None,
    sinks: bool,
    threads: int,
) -> None:
    case = random_case(seed, queries, dtype, shape, sinks=sinks, window=window, soft_cap=soft_cap)
    assert error_of(case, case.attend(native, num_threads=threads)) < 2e-6


@forests
@given(SEEDS, QUERIES, DTYPES, SHAPES, WINDOWS)
def test_quantised_segments_are_read_from_their_planes(
    native: Library,
    seed: int,
    queries: int,
    dtype: torch.dtype,
    shape: tuple[tuple[int, int], int],
    window: int | None,
) -> None:
    case = quantized_case(random_case(seed, queries, dtype, shape, quantized=True, window=window))
    assert error_of(case, case.attend(native), dequantized(case)) < 2e-6


@forests
@given(SEEDS, QUERIES, DTYPES, SHAPES, WINDOWS, st.booleans())
def test_every_instruction_set_and_number_of_threads_gives_the_same_bits(
    every_native: list[Library],
    seed: int,
    queries: int,
    dtype: torch.dtype,
    shape: tuple[tuple[int, int], int],
    window: int | None,
    quantized: bool,
) -> None:
    case = random_case(
        seed, queries, dtype, shape, quantized=quantized, sinks=True, window=window, soft_cap=30.0
    )
    case = quantized_case(case) if quantized else case
    first = case.attend(every_native[0], num_threads=1)
    for library in every_native:
        for threads in (1, 2, 4):
            assert torch.equal(case.attend(library, num_threads=threads), first), library.isa()


@forests
@given(SEEDS, QUERIES, WINDOWS, CAPS, st.lists(st.integers(1, 600), max_size=6))
def test_a_branch_alone_has_its_bits_in_company_however_its_path_is_cut(
    native: Library,
    seed: int,
    queries: int,
    window: int | None,
    soft_cap: float | None,
    cuts: list[int],
) -> None:
    case = random_case(seed, queries, sinks=True, window=window, soft_cap=soft_cap)
    together = case.attend(native)
    for branch in range(len(case.batch.branch_segment)):
        single = alone(case, branch, cuts)
        check_batch(single.batch)
        assert torch.equal(single.attend(native), together[rows_of(case.batch, branch)])


@forests
@given(SEEDS, QUERIES, WINDOWS)
def test_slots_may_lie_anywhere(
    native: Library, seed: int, queries: int, window: int | None
) -> None:
    case = random_case(seed, queries, window=window)
    assert torch.equal(moved(case, seed).attend(native), case.attend(native))


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_a_prefill_has_the_same_bits_in_any_chunks(
    native: Library, chunk: int, window: int | None
) -> None:
    before, total = 100, 640
    whole = make_case(chain([0, before, total], before), window=window)
    out = whole.attend(native)
    for start in range(before, total, chunk):
        end = min(start + chunk, total)
        cuts = [0, before, start, end] if start > before else [0, before, end]
        part = replace(whole, batch=chain(cuts, start), q=whole.q[start - before : end - before])
        assert torch.equal(part.attend(native), out[start - before : end - before])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_plan_that_advances_is_the_plan_of_the_longer_forest(
    native: Library, dtype: torch.dtype
) -> None:
    steps, branches = 130, 3
    longest = level_forest((1, branches), (75, 40 + steps))
    case = make_case(longest, heads=(4, 2), dtype=dtype, seed=3)
    kv = NativeKV(case.layer_kv)
    tails = longest.segment_slots[1:]

    def plan_at(step: int) -> NativeAttentionPlan:
        slots = [longest.segment_slots[0], *(tail[: 40 + step] for tail in tails)]
        batch = replace(
            longest,
            segment_slots=slots,
            branch_query_start=np.full(branches, 75 + 40 + step - 1, np.int32),
        )
        return NativeAttentionPlan(native, batch, num_heads=4, num_kv_heads=2, head_dim=16)

    plan = plan_at(0)
    for step in range(1, steps):
        plan.advance(np.array([tail[39 + step] for tail in tails], np.int32))
        if step % 9:
            continue
        fresh = plan_at(step)
        assert plan.positions.tolist() == fresh.positions.tolist()
        assert plan.new_slots.tolist() == fresh.new_slots.tolist()
        for window in (None, 80):
            outs = [
                p.attend(kv, case.q, AttentionOptions(0.25, window), num_threads=2)
                for p in (plan, fresh)
            ]
            assert torch.equal(*outs)


def test_a_root_may_start_at_any_position(native: Library) -> None:
    batch = TreeBatch(
        segment_slots=[np.arange(90, dtype=np.int32), np.arange(90, 100, dtype=np.int32)],
        segment_parent=np.array([-1, 0], np.int32),
        segment_start=np.array([150, 240], np.int32),
        branch_segment=np.array([1], np.int32),
        branch_query_start=np.array([247], np.int32),
        branch_num_queries=np.array([3], np.int32),
    )
    case = make_case(batch)
    assert error_of(case, case.attend(native)) < 2e-6


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_later_token_cannot_reach_an_earlier_row(native: Library, value: float) -> None:
    case = make_case(chain([0, 100], 90))
    clean = case.attend(native)
    case.layer_kv.k[95] = value
    case.layer_kv.v[95] = value
    out = case.attend(native)
    assert torch.equal(out[:5], clean[:5])
    assert not out[5:].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [8, 24, 64])
def test_storing_rounds_as_torch_does(
    every_native: list[Library], dtype: torch.dtype, head_dim: int
) -> None:
    batch = random_forest(np.random.default_rng(5), max_queries=40)
    slots = torch.from_numpy(new_slots_of(batch).astype(np.int64))
    generator = torch.Generator().manual_seed(1)
    k, v = (
        torch.randn(len(slots), 1, head_dim, generator=generator)
        * 2.0 ** torch.randint(-30, 18, (len(slots), 1, head_dim), generator=generator)
        for _ in range(2)
    )
    k[0, 0, :6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1 + 2**-9])
    for library in every_native:
        case = make_case(batch, heads=(1, 1), head_dim=head_dim, dtype=dtype)
        untouched = torch.ones(len(case.layer_kv.k), dtype=torch.bool)
        untouched[slots] = False
        before = case.layer_kv.k[untouched].clone()
        plan = NativeAttentionPlan(library, batch, num_heads=1, num_kv_heads=1, head_dim=head_dim)
        plan.store(NativeKV(case.layer_kv), k, v, num_threads=2)
        for pool, given_rows in ((case.layer_kv.k, k), (case.layer_kv.v, v)):
            torch.testing.assert_close(
                pool[slots], given_rows.to(dtype), rtol=0, atol=0, equal_nan=True
            )
        torch.testing.assert_close(
            case.layer_kv.k[untouched], before, rtol=0, atol=0, equal_nan=True
        )


def test_what_does_not_fit_is_refused(native: Library) -> None:
    case = make_case(chain([0, 20], 18), heads=(2, 1))
    kv = NativeKV(case.layer_kv)

    def plan(heads: int = 2, dim: int = 16, batch: TreeBatch = case.batch) -> NativeAttentionPlan:
        return NativeAttentionPlan(native, batch, num_heads=heads, num_kv_heads=1, head_dim=dim)

    with pytest.raises(ValueError, match="multiple of 8"):
        plan(dim=20)
    with pytest.raises(ValueError, match="do not divide"):
        plan(heads=0)
    with pytest.raises(ValueError, match="only a pure decode plan"):
        plan().advance(np.array([3], np.int32))
    with pytest.raises(ValueError, match="do not fit 1 branches"):
        plan().advance(np.array([3, 4], np.int32))
    with pytest.raises(ValueError, match="this plan needs"):
        plan().attend(kv, case.q[:1], AttentionOptions(1.0), num_threads=1)
    with pytest.raises(ValueError, match="shows nothing"):
        AttentionOptions(1.0, window=0)
    with pytest.raises(ValueError, match="the pool holds"):
        plan(dim=24).attend(kv, torch.zeros(2, 2, 24), AttentionOptions(1.0), num_threads=1)
    cold = plan(batch=chain([0, 10, 20], 18, quantized=True))
    with pytest.raises(ValueError, match="no int8 planes"):
        cold.attend(kv, case.q, AttentionOptions(1.0), num_threads=1)
    with pytest.raises(ValueError, match="cannot be read here"):
        NativeKV(LayerKV(case.layer_kv.k.double(), case.layer_kv.v.double()))
