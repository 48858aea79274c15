"""Attention in plain torch: right by float64, and a row's bits are its own path's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.cpu import elementwise
from radixlang.kernels.cpu.blocks import attend_blocks
from radixlang.kernels.cpu.paths import path_groups
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import chain
from radixlang.kernels.reference.attention import attend_reference
from radixlang.kernels.tools.forests import level_forest, random_forest
from tests.kernels.native.forest_cases import (
    Case,
    alone,
    dequantized,
    make_case,
    moved,
    quantized_case,
    rows_of,
)

pytestmark = pytest.mark.usefixtures("nan_filled_memory")
SEEDS = st.integers(min_value=0, max_value=2**32 - 1)
QUERIES = st.sampled_from([1, 1, 4, 70])
WINDOWS = st.sampled_from([None, None, 1, 5, 64, 100])
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SHAPES = st.sampled_from([((9, 3), 16), ((4, 1), 40), ((2, 2), 7), ((2, 1), 256)])
forests = settings(max_examples=40, deadline=None, derandomize=True)


def options_of(case: Case) -> AttentionOptions:
    return AttentionOptions(**({"scale": case.q.shape[2] ** -0.5} | case.options))


def plain(case: Case) -> Tensor:
    return attend_blocks(case.q, case.layer_kv, path_groups(case.batch), options_of(case))


def error_of(case: Case, kv: LayerKV | None = None) -> float:
    """Largest error against float64, relative to the largest value."""
    kv = kv or case.layer_kv
    expected = attend_reference(case.q, kv.k, kv.v, case.batch, options_of(case))
    return float((plain(case) - expected).abs().max() / expected.abs().max().clamp(min=1))


@forests
@given(SEEDS, QUERIES, DTYPES, SHAPES, WINDOWS, st.sampled_from([None, 20.0]), st.booleans())
def test_random_forests_match_float64(
    seed: int,
    queries: int,
    dtype: torch.dtype,
    shape: tuple[tuple[int, int], int],
    window: int | None,
    soft_cap: float | None,
    sinks: bool,
) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=shape[0][0])).float() if sinks else None
    case = make_case(
        random_forest(rng, max_queries=queries, longest=300), heads=shape[0], head_dim=shape[1],
        dtype=dtype, window=window, soft_cap=soft_cap, sinks=logits,
    )  # fmt: skip
    assert error_of(case) < 3e-6


@forests
@given(SEEDS, QUERIES)
def test_quantized_segments_match_what_they_stand_for(seed: int, queries: int) -> None:
    rng = np.random.default_rng(seed)
    batch = random_forest(rng, max_queries=queries, longest=300, quantized=True)
    if batch.segment_quantized is None:
        return
    case = quantized_case(make_case(batch))
    assert error_of(case, dequantized(case)) < 3e-6


@forests
@given(SEEDS, QUERIES, WINDOWS)
def test_a_row_has_the_same_bits_alone_cut_and_in_other_slots(
    seed: int, queries: int, window: int | None
) -> None:
    rng = np.random.default_rng(seed)
    batch = random_forest(rng, max_queries=queries, longest=300)
    case = make_case(batch, dtype=torch.float32, window=window)
    whole = plain(case)
    assert torch.equal(plain(moved(case, seed % 1000)), whole)
    for branch in range(len(batch.branch_segment)):
        own = whole[rows_of(batch, branch)]
        cuts = rng.integers(1, 400, size=3).tolist()
        assert torch.equal(plain(alone(case, branch, cuts)), own)
        assert torch.equal(plain(alone(case, branch, queries=1)), own[-1:])


@pytest.fixture
def on_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_threads_leave_a_rows_bits(on_threads: Callable[[int], None]) -> None:
    case = make_case(chain((0, 301), 1), heads=(6, 2), head_dim=24)
    found = []
    for threads in (1, 2, 5):
        on_threads(threads)
        found.append(plain(case))
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


def test_an_advanced_plan_has_the_bits_of_a_new_one() -> None:
    batch = level_forest((1, 3), (120, 5))
    case = make_case(batch, dtype=torch.float32)
    first = 1 + max(int(slots.max()) for slots in batch.segment_slots)
    pool = LayerKV(*(torch.cat((plane, torch.full((30, *plane.shape[1:]), torch.nan)))
                     for plane in (case.layer_kv.k, case.layer_kv.v)))  # fmt: skip
    options = AttentionOptions(0.25)
    plan = plan_attention(batch, num_heads=9, num_kv_heads=3, head_dim=16)
    for step in range(10):  # over the end of a block
        q, (k, v) = torch.randn(3, 9, 16), torch.randn(2, 3, 3, 16)
        found = attend(q, k, v, pool, plan, options)
        assert torch.equal(attend_blocks(q, pool, path_groups(batch), options), found)
        slots = first + 3 * step + np.arange(3, dtype=np.int32)
        plan.advance(slots)
        for branch, segment in enumerate(batch.branch_segment.tolist()):
            batch.segment_slots[segment] = np.append(batch.segment_slots[segment], slots[branch])  # type: ignore[index]
        batch.branch_query_start[:] += 1


@pytest.mark.parametrize("name", ["tanh", "silu", "gelu", "gelu_tanh"])
def test_functions_are_near_torchs_wherever_a_number_lies(name: str) -> None:
    function = getattr(elementwise, name)
    theirs = {
        "tanh": torch.tanh, "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }[name]  # fmt: skip
    x = torch.randn(3, 37) * 8
    x[0, 0], x[0, 1] = 0.0, torch.nan
    found = function(x)
    torch.testing.assert_close(
        found.double(), theirs(x.double()), rtol=1e-7, atol=1e-14, equal_nan=True
    )
    for at in (0, 5, 36):
        assert torch.equal(function(x[1:, at]), found[1:, at])


def test_exp_is_exact_to_float32_and_vanishes_at_minus_infinity() -> None:
    x = torch.cat((torch.linspace(-690, 690, 20_001), torch.tensor([0.0, -torch.inf, -1e9])))
    found = elementwise.exp(x)
    torch.testing.assert_close(found[:-2], torch.exp(x.double())[:-2], rtol=1e-13, atol=1e-300)
    assert found[-2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("queries", [1, 5])
def test_a_window_reads_nothing_behind_it(queries: int) -> None:
    """Keys out of every row's reach may be anything, even freed."""
    window, batch = 20, level_forest((1, 2), (100, 30), num_queries=queries)
    case = make_case(batch, window=window)
    behind = (int(batch.branch_query_start[0]) - window + 1) // 64 * 64
    case.layer_kv.k[:behind] = case.layer_kv.v[:behind] = torch.nan
    assert torch.isfinite(plain(case)).all()


@pytest.mark.parametrize("soft_cap", [None, 30.0])
@pytest.mark.parametrize("size", [1e3, -1e3, -6e3, 1e18])
def test_huge_scores_stay_finite(size: float, soft_cap: float | None) -> None:
    """A soft cap may give inf / inf, and a sentinel may outweigh real scores."""
    batch = level_forest((1, 2), (40, 3))
    case = make_case(batch, heads=(2, 1), dtype=torch.float32, scale=1.0, soft_cap=soft_cap)
    case.q[:] = 1
    case.layer_kv.k[:46] = size
    assert torch.isfinite(plain(case)).all()
    if size != 1e18:  # where the reference's log-sum-exp resolves nothing
        assert error_of(case) < 1e-5


def test_int8_segments_need_int8_planes() -> None:
    batch = dataclasses.replace(
        level_forest((1, 2), (40, 3)), segment_quantized=np.array([True, False, False])
    )
    with pytest.raises(ValueError, match="no int8 planes"):
        plain(make_case(batch))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"q": (3, 4, 16)}, "q is"), ({"k": (2, 1, 16)}, "k is"), ({"window": 0}, "shows nothing")],
)
def test_shapes_must_agree_with_the_plan(change: dict[str, Any], message: str) -> None:
    batch = level_forest((1, 2), (40, 3))
    plan = plan_attention(batch, num_heads=4, num_kv_heads=2, head_dim=16)
    pool = make_case(batch, heads=(4, 2)).layer_kv
    q = torch.randn(change.get("q", (2, 4, 16)))
    k = torch.randn(change.get("k", (2, 2, 16)))
    with pytest.raises(ValueError, match=message):
        attend(q, k, k, pool, plan, AttentionOptions(1.0, window=change.get("window")))


def test_a_pool_that_is_not_contiguous_is_refused() -> None:
    plane = torch.zeros(8, 2, 32)[..., ::2]
    with pytest.raises(ValueError, match="must be contiguous"):
        LayerKV(plane, plane)
