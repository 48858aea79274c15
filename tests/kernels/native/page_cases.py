"""Random forests whose rows read less than their paths, and what must hold of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.attention import NativeAttentionPlan, NativeKV
from radixlang.kernels.native.library import Library
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.page_limits import PageLimits, PageTallies
from radixlang.kernels.reference.pages import attend_pages_reference, page_shares
from radixlang.kernels.tools.forests import random_forest
from tests.kernels.native.forest_cases import Case, dequantized, make_case, quantized_case

Shape = tuple[tuple[int, int], int]
SEEDS = st.integers(min_value=0, max_value=2**32 - 1)
QUERIES = st.sampled_from([1, 1, 4])
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
SHAPES = st.sampled_from([((6, 2), 16), ((9, 3), 64), ((4, 1), 40), ((2, 2), 24), ((8, 1), 8)])


@st.composite
def any_case(draw: st.DrawFn) -> Case:
    """A forest of any shape, type and limits, a third of them with quantised segments."""
    options = {"seed": draw(SEEDS), "queries": draw(QUERIES), "shape": draw(SHAPES)}
    if draw(st.sampled_from([True, False, False])):
        return limited_case(**options, quantized=True)
    soft_cap = draw(st.sampled_from([None, None, 20.0]))
    return limited_case(**options, dtype=draw(DTYPES), soft_cap=soft_cap, sinks=draw(st.booleans()))


def check_any(library: Library, case: Case, threads: int) -> int:
    """`check_case`, whether or not some of the case's slots are quantised."""
    is_quantized = case.batch.segment_quantized is not None
    kv = dequantized(case) if is_quantized else None
    return check_case(library, case, threads=threads, kv=kv)


THREADS = st.sampled_from([1, 2])


def check_many(library: Library, num_cases: int, start: int) -> int:
    """Check that many cases, drawn from a seed; returns the number of pages that were left out."""
    left_out = 0

    @seed(start)
    @settings(max_examples=num_cases, deadline=None, database=None)
    @given(any_case(), THREADS)
    def check(case: Case, threads: int) -> None:
        nonlocal left_out
        left_out += check_any(library, case, threads)

    check()
    return left_out


def limited_case(
    seed: int, *, shape: Shape = ((6, 2), 16), queries: int = 1, longest: int = 700,
    dtype: torch.dtype = torch.float32, quantized: bool = False, sinks: bool = False,
    limit: float | None = None, **options: float | None,
) -> Case:  # fmt: skip
    """A random forest; `limit` of every row, None: of each its own, some of them none.

    Queries are of one length and keys of many, so that attention is even, or far from it.
    """
    rng = np.random.default_rng(seed)
    batch = random_forest(rng, max_queries=queries, longest=longest, quantized=quantized)
    num_rows = int(batch.branch_num_queries.sum())
    logits = torch.from_numpy(rng.normal(size=shape[0][0]) * 3).float() if sinks else None
    case = make_case(
        batch, heads=shape[0], head_dim=shape[1], dtype=dtype, seed=seed % 1000, sinks=logits,
        **options,
    )  # fmt: skip
    limits = rng.choice([0, 1, 3, 0.3, 0.05, 0.01, 1e-4], num_rows)
    if limit is not None:
        limits[:] = limit
    for slots in batch.segment_slots:  # stretches of long and of short keys
        for part in np.split(slots.astype(np.int64), range(40, len(slots), 40)):
            case.layer_kv.k[torch.from_numpy(part)] *= float(rng.choice([0.1, 0.3, 1, 3]))
    batch = replace(batch, limits=limits_of(limits))
    case = replace(case, q=case.q * float(rng.choice([0.5, 2, 8])), batch=batch)
    return quantized_case(case) if quantized else case


def limits_of(limits: np.ndarray) -> PageLimits:
    """Numbers below 1 are shares of the mass, others pages; 0 is neither."""
    is_mass = limits < 1
    return PageLimits(np.where(is_mass, 0, limits).astype(np.int32), np.where(is_mass, limits, 0.0))


def options_of(case: Case) -> AttentionOptions:
    return AttentionOptions(**({"scale": case.q.shape[2] ** -0.5} | case.options))


def plan_of(library: Library, case: Case) -> NativeAttentionPlan:
    num_heads, head_dim = case.q.shape[1:]
    return NativeAttentionPlan(
        library, case.batch,
        num_heads=num_heads, num_kv_heads=case.layer_kv.k.shape[1], head_dim=head_dim,
    )  # fmt: skip


def check_case(library: Library, case: Case, *, threads: int = 1, kv: LayerKV | None = None) -> int:
    """Check one call against float64; returns the number of pages that were left out.

    `kv` holds what the case's slots stand for, where some are quantised.
    """
    limits, held, plan = case.batch.limits, kv or case.layer_kv, plan_of(library, case)
    assert limits is not None
    options = options_of(case)
    out = plan.attend(NativeKV(case.layer_kv), case.q, options, num_threads=threads)
    tallies = plan.take_tallies()
    assert tallies is not None
    chosen, heads = [], range(held.k.shape[1])
    for row, is_limited in enumerate(limits.limited.tolist()):
        pages = np.stack([plan.chosen(row, head) for head in heads])
        chosen.append(pages)
        if is_limited:
            check_row(case, held, row, pages, tallies, options)
        else:
            assert pages.all()
    expected = attend_pages_reference(case.q, held.k, held.v, case.batch, chosen, options)
    error = float((out - expected).abs().max() / expected.abs().max().clamp(min=1))
    assert error < 1e-4, error  # scores up to some hundreds, in float32
    return int((tallies.all_pages - tallies.read).sum())


def check_row(
    case: Case,
    held: LayerKV,
    row: int,
    pages: np.ndarray,
    tallies: PageTallies,
    options: AttentionOptions,
) -> None:
    """What a row left out is no more than it says, and no more than it may."""
    limits = case.batch.limits
    assert limits is not None
    shares = page_shares(case.q, held.k, case.batch, row, options)
    read = np.repeat(pages, case.q.shape[1] // held.k.shape[1], axis=0)
    omitted = float((shares * torch.from_numpy(~read)).sum(1).max())
    bound, share = float(tallies.omitted[row]), float(limits.top_mass[row])
    assert omitted <= bound + 1e-12, (omitted, bound)
    assert not share or bound <= share, (bound, share)
    assert pages[:, -2:].all()
    first = int(np.argmax(pages.any(0)))  # of the path
    assert tallies.read[row] == pages.sum()
    assert tallies.all_pages[row] == len(pages) * (pages.shape[1] - first)
    assert pages[:, first].all()
    if limits.top_pages[row]:
        most = min(int(limits.top_pages[row]) + 3, pages.shape[1] - first)
        assert (pages.sum(1) <= most).all()
