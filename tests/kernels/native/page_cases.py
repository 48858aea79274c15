"""Random forests whose rows read less than their paths, and what must hold of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.attention import NativeAttentionPlan, NativeKV
from radixlang.kernels.native.library import Library
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.page_limits import PageLimits
from radixlang.kernels.reference.pages import attend_pages_reference, page_shares
from radixlang.kernels.tools.forests import random_forest
from tests.kernels.native.forest_cases import Case, make_case

Shape = tuple[tuple[int, int], int]


def limited_case(
    seed: int, *, shape: Shape = ((6, 2), 16), queries: int = 1, longest: int = 700,
    dtype: torch.dtype = torch.float32, quantized: bool = False, sinks: bool = False,
    limit: float | None = None, **options: float | None,
) -> Case:  # fmt: skip
    """A random forest; `limit` of every row, None: of each its own, some of them none.

    Queries are long, so that attention is far from even; keys drift along the path, as rotated
    ones do.
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
    return replace(
        case, q=case.q * float(rng.choice([0.5, 2, 8])),
        batch=replace(batch, limits=limits_of(limits)),
    )  # fmt: skip


def limits_of(limits: np.ndarray) -> PageLimits:
    """Numbers below 1 are shares of the mass, others pages; 0 is neither."""
    is_mass = limits < 1
    return PageLimits(
        np.where(is_mass, 0, limits).astype(np.int32), np.where(is_mass, limits, 0.0)
    )


def options_of(case: Case) -> AttentionOptions:
    return AttentionOptions(**({"scale": case.q.shape[2] ** -0.5} | case.options))


def check_case(library: Library, case: Case, *, threads: int = 1, kv: LayerKV | None = None) -> int:
    """Check one call against float64; returns the number of rows and heads that were limited.

    `kv` holds what the case's slots stand for, where some are quantised.
    """
    limits, held = case.batch.limits, kv or case.layer_kv
    assert limits is not None
    num_heads, head_dim = case.q.shape[1:]
    num_kv_heads = held.k.shape[1]
    plan = NativeAttentionPlan(
        library, case.batch, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim
    )
    options = options_of(case)
    out = plan.attend(NativeKV(case.layer_kv), case.q, options, num_threads=threads)
    tallies = plan.take_tallies()
    assert tallies is not None
    chosen, count = [], 0
    for row, is_limited in enumerate(limits.limited.tolist()):
        pages = np.stack([plan.chosen(row, head) for head in range(num_kv_heads)])
        chosen.append(pages)
        if is_limited:
            _check_row(case, held, row, pages, tallies, options)
            count += num_heads
    expected = attend_pages_reference(case.q, held.k, held.v, case.batch, chosen, options)
    error = float((out - expected).abs().max() / expected.abs().max().clamp(min=1))
    assert error < 5e-6, error
    return count


def _check_row(case, held, row, pages, tallies, options) -> None:  # type: ignore[no-untyped-def]
    shares = page_shares(case.q, held.k, case.batch, row, options)
    read = np.repeat(pages, case.q.shape[1] // held.k.shape[1], axis=0)
    omitted = float((shares * torch.from_numpy(~read)).sum(1).max())
    bound, share = float(tallies.omitted[row]), float(case.batch.limits.top_mass[row])
    assert omitted <= bound + 1e-12, (omitted, bound)
    if share:
        assert bound <= share, (bound, share)
    assert tallies.read[row] == pages.sum()
    assert pages[:, -2:].all()
    top = int(case.batch.limits.top_pages[row])
    if top:
        assert pages.sum(1).max() <= top + 3
