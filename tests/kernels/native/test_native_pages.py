"""Rows that read the pages that matter: never less than promised, whatever else is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixlang.kernels.native.attention import NativeKV
from radixlang.kernels.native.library import Library
from radixlang.kernels.plan.page_limits import PageLimits
from radixlang.kernels.plan.tree_batch import TreeBatch, chain, check_batch
from tests.kernels.native.forest_cases import Case, alone, make_case, moved, rows_of
from tests.kernels.native.page_cases import (
    DTYPES,
    QUERIES,
    SEEDS,
    THREADS,
    any_case,
    check_any,
    check_case,
    check_many,
    limited_case,
    limits_of,
    options_of,
    plan_of,
)

forests = settings(
    max_examples=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


@settings(forests, max_examples=80)
@given(any_case(), THREADS)
def test_what_is_left_out_holds_no_more_than_promised(
    native: Library, case: Case, threads: int
) -> None:
    check_any(native, case, threads)


def test_many_cases_are_checked_by_their_number(native: Library) -> None:
    assert check_many(native, 10, 0) > 0


def test_pages_are_left_out_at_all(native: Library) -> None:
    assert all(
        sum(check_case(native, limited_case(seed, limit=limit)) for seed in range(8)) > 0
        for limit in (1, 0.3, 0.05, 0.01)
    )


@forests
@given(SEEDS, QUERIES, DTYPES)
def test_every_instruction_set_and_number_of_threads_gives_the_same_bits(
    every_native: list[Library], seed: int, queries: int, dtype: torch.dtype
) -> None:
    case = limited_case(seed, queries=queries, dtype=dtype, shape=((9, 3), 64))
    expected = case.attend(every_native[0], num_threads=1)
    for library in every_native:
        for threads in (1, 2, 3):
            assert torch.equal(case.attend(library, num_threads=threads), expected)


@forests
@given(SEEDS, QUERIES, DTYPES, st.data())
def test_a_row_reads_the_same_pages_alone_and_in_any_company(
    native: Library, seed: int, queries: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    case = limited_case(seed, queries=queries, dtype=dtype)
    together, limits = case.attend(native), case.batch.limits
    assert limits is not None
    branch = data.draw(st.integers(0, len(case.batch.branch_segment) - 1))
    rows = rows_of(case.batch, branch)
    cuts = data.draw(st.lists(st.integers(0, 700), max_size=4))
    single = alone(case, branch, cuts)
    own = PageLimits(limits.top_pages[rows], limits.top_mass[rows])
    single = replace(single, batch=replace(single.batch, limits=own))
    assert torch.equal(single.attend(native), together[rows])
    assert torch.equal(moved(single, seed % 97).attend(native), together[rows])


@forests
@given(SEEDS, st.integers(1, 400), st.integers(1, 150))
def test_an_advanced_plan_reads_as_one_that_is_built_anew(
    native: Library, seed: int, start: int, steps: int
) -> None:
    limits = limits_of(np.array([0.05]))
    whole = make_case(chain((0, start, start + steps), start + steps - 1), seed=seed % 1000)
    first = replace(chain((0, start), start - 1), limits=limits)
    case = replace(whole, q=whole.q * 4)
    plan, kv = plan_of(native, replace(case, batch=first)), NativeKV(case.layer_kv)
    options = options_of(case)
    plan.attend(kv, case.q, options, num_threads=1)
    for slot in range(start, start + steps):
        plan.advance(np.array([slot], np.int32))
        if slot % 3 == 0:
            plan.attend(kv, case.q, options, num_threads=1)
    advanced = plan.attend(kv, case.q, options, num_threads=1)
    fresh = replace(case, batch=replace(case.batch, limits=limits))
    assert torch.equal(advanced, fresh.attend(native))


def test_a_window_is_read_whole(native: Library) -> None:
    case = limited_case(5, limit=0.3, window=100)
    exact = replace(case, batch=replace(case.batch, limits=None))
    plan = plan_of(native, case)
    out = plan.attend(NativeKV(case.layer_kv), case.q, options_of(case), num_threads=1)
    assert torch.equal(out, exact.attend(native))
    tallies = plan.take_tallies()
    assert tallies is not None
    assert (tallies.read == tallies.all_pages).all()
    assert tallies.read.min() > 0
    assert tallies.omitted.max() == 0
    assert plan.take_tallies().read.max() == 0  # type: ignore[union-attr]


def test_rows_without_a_limit_have_the_bits_of_a_plan_without_limits(native: Library) -> None:
    case = limited_case(3)
    limits = case.batch.limits
    assert limits is not None
    exact = replace(case, batch=replace(case.batch, limits=None)).attend(native)
    rows = torch.from_numpy(~limits.limited)
    assert rows.any()
    assert torch.equal(case.attend(native)[rows], exact[rows])


def test_keys_all_alike_have_an_exact_envelope(native: Library) -> None:
    case = limited_case(11, limit=1e-4)
    for value in (0.0, 1.0, 1e-38):
        case.layer_kv.k.fill_(value)
        check_case(native, case)


def forest(limits: PageLimits) -> TreeBatch:
    return replace(chain((0, 10, 12), 10), limits=limits)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (limits_of(np.array([1, 1, 1])), "2 rows need as many limits"),
        (PageLimits(np.array([0, -1], np.int32), np.zeros(2)), "top_pages of row 1 is below 0"),
        (limits_of(np.array([0.5, -0.5])), "top_mass of row 1 is not from 0"),
        (PageLimits(np.zeros(2, np.int32), np.array([1.0, 0])), "top_mass of row 0 is not from 0"),
        (PageLimits(np.ones(2, np.int32), np.array([0, 0.5])), "row 1 has both"),
    ],
)
def test_limits_that_contradict_themselves_are_refused(limits: PageLimits, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_batch(forest(limits))


def test_a_case_is_what_it_says() -> None:
    case: Case = limited_case(1)
    check_batch(case.batch)
