"""The cut for a GPU: each (row, visible key) in exactly one unit, partials in position order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.kernels.gpu.plan.tiles import pick_tile
from radixlang.kernels.gpu.plan.work_units import UnitPlan, build_units
from radixlang.kernels.plan.topology import build_topology
from radixlang.kernels.reference.attention import slots_seen
from radixlang.kernels.tools.forests import level_forest, random_forest

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def all_units(plan: UnitPlan) -> np.ndarray:
    lists = [part.units for part in plan.lists]
    return np.concatenate([*lists, np.zeros((0, 8), np.int32)])


def read_keys(plan: UnitPlan, units: np.ndarray, window: int | None) -> dict[int, list[int]]:
    """Slots that the units give each flat row, with everything the kernel masks left out."""
    seen: dict[int, list[int]] = {int(token): [] for token in plan.row_token}
    for begin, count, first, row, rows, rank, base, _ in units.tolist():
        listed = plan.slots[begin : begin + count]
        slots = base + np.arange(count) if base >= 0 else listed
        assert (slots == listed).all()
        at = first + np.arange(count)
        for index in range(row, row + rows):
            position = int(plan.row_pos[index])
            ok = at <= position
            if window is not None:
                ok &= at > position - window
            if rank < plan.row_first[index]:
                assert not ok.any(), "a partial that is not stored has visible keys"
            seen[int(plan.row_token[index])] += slots[ok].tolist()
    return seen


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=SEEDS,
    group=st.integers(min_value=1, max_value=16),
    queries=st.sampled_from([1, 1, 5, 80]),
    window=st.sampled_from([None, 1, 7, 64, 300]),
    deterministic=st.booleans(),
    quantized=st.booleans(),
)
def test_every_row_and_key_is_covered_exactly_once(
    seed: int, group: int, queries: int, window: int | None, deterministic: bool, quantized: bool
) -> None:
    rng = np.random.default_rng(seed)
    batch = random_forest(rng, max_queries=queries, longest=1300, quantized=quantized)
    plan = build_units(
        build_topology(batch, deterministic=deterministic),
        group_size=group, num_kv_heads=2, head_dim=64, window=window, deterministic=deterministic,
    )  # fmt: skip
    units = all_units(plan)
    seen = read_keys(plan, units, window)
    if plan.extend is not None:
        for token, keys in read_keys(plan, plan.extend.units, window).items():
            seen[token] += keys
    assert {token: sorted(keys) for token, keys in seen.items()} == {
        row: sorted(slots) for row, slots in enumerate(slots_seen(batch, window))
    }
    check_partials(plan, units)


def check_partials(plan: UnitPlan, units: np.ndarray) -> None:
    """A row's partials are numbered without gaps, and no two rows share one."""
    taken: list[int] = []
    for row in range(plan.num_tree_rows):
        mine = units[(units[:, 3] <= row) & (row < units[:, 3] + units[:, 4])]
        mine = mine[mine[:, 5] >= plan.row_first[row]]
        mine = mine[np.argsort(mine[:, 5])]
        assert (np.diff(mine[:, 2]) > 0).all(), "partials are not in position order"
        assert mine[:, 5].tolist() == [plan.row_first[row] + i for i in range(len(mine))]
        assert len(mine) == plan.row_count[row]
        if len(mine) > 1:
            taken += (plan.row_part[row] + np.arange(len(mine))).tolist()
    assert sorted(taken) == list(range(plan.num_parts))


def test_row_blocks_of_a_chunk_are_neighbours_and_long_units_come_first() -> None:
    topology = build_topology(level_forest((1, 200), (5000, 30)))
    plan = build_units(topology, group_size=4, num_kv_heads=8, head_dim=128)
    for part in plan.lists:
        lengths = part.units[:, 1]
        assert (np.diff(lengths) <= 0).all()
        changes = np.count_nonzero(np.diff(part.units[:, 2] * 1_000_000 + part.units[:, 3]) < 0)
        chunks = len(np.unique(part.units[:, :2], axis=0))
        assert changes <= chunks


def test_many_new_tokens_take_one_pass_over_their_path() -> None:
    topology = build_topology(level_forest((1, 4), (500, 40), num_queries=40))
    plan = build_units(topology, group_size=3, num_kv_heads=3, head_dim=64)
    assert plan.lists == ()
    assert plan.num_parts == 0
    assert plan.extend is not None
    assert plan.extend.units[:, 4].sum() == 160


def test_a_window_drops_units_out_of_its_reach() -> None:
    topology = build_topology(level_forest((1, 8), (20_000, 8)))
    whole = build_units(topology, group_size=4, num_kv_heads=8, head_dim=128)
    windowed = build_units(topology, group_size=4, num_kv_heads=8, head_dim=128, window=512)
    assert all_units(windowed)[:, 1].sum() < all_units(whole)[:, 1].sum() / 8


@pytest.mark.parametrize("group", range(1, 17))
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_a_tile_holds_at_least_one_row_of_any_group(group: int, head_dim: int) -> None:
    for arch in (80, 90, 100):
        for itemsize in (2, 4):
            for packed in (1, 16, 17, 64, 97, 4096):
                tile = pick_tile(packed, head_dim, group, itemsize=itemsize, arch=arch)
                assert tile.rows(group) >= 1


def test_a_group_that_no_tile_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="one tile takes 128"):
        pick_tile(16, 64, 129)
