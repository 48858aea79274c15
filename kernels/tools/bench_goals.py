"""Goals of the bench: on a GPU by shape, on a CPU against attention without sharing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radixlang.kernels.attention import plan_attention
from radixlang.kernels.gpu.plan.plan_units import units_of
from radixlang.kernels.tools.bench_baselines import native_library
from radixlang.kernels.tools.bench_shapes import CPU_ONLY, GOALS, BenchRow
from radixlang.kernels.tools.forests import level_forest

Rows = Mapping[str, BenchRow]
Reached = Callable[
    [BenchRow, Rows], float | None
]  # 1 and more: reached. None: nothing to compare with


@dataclass(frozen=True, slots=True)
class Goal:
    """One promise about one shape."""

    shape: str
    text: str
    reached: Reached


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a goal was reached: 1 is just so, None is not measured here."""

    shape: str
    text: str
    reached: float | None

    @property
    def line(self) -> str:
        """For a terminal."""
        number = self.reached
        word = "not measured" if number is None else f"{'reached' if number >= 1 else 'MISSED'}"
        times = "" if number is None else f" ({number:.2f} of it)"
        return f"{word}: {self.shape}: {self.text}{times}"


def judge(rows: Sequence[BenchRow], goals: Sequence[Goal]) -> list[Verdict]:
    """Every goal, with what these rows say of it."""
    by_name = {row.shape: row for row in rows}
    verdicts = []
    for goal in goals:
        row = by_name.get(goal.shape)
        reached = None if row is None or not row.measured else goal.reached(row, by_name)
        verdicts.append(Verdict(goal.shape, goal.text, reached))
    return verdicts


def _ours(row: BenchRow) -> float:
    mine = row.times_ms["ours"]
    assert mine is not None
    return mine


def _within(limit_ms: Callable[[BenchRow], float]) -> Reached:
    return lambda row, _: limit_ms(row) / _ours(row)


def _of_roof(share: float, spare_ms: float = 0.0) -> Reached:
    """At most the roof's time / share, and a launch."""
    return _within(lambda row: (row.roof_ms or 0.0) / share + spare_ms)


def _ahead(times: float, *columns: str) -> Reached:
    """At least so many times as fast as the fastest of these columns."""

    def reached(row: BenchRow, _: Rows) -> float | None:
        others = [other for name in columns if (other := row.times_ours(name)) is not None]
        return min(others) / times if others else None

    return reached


def _int8_beside(exact: str) -> Reached:
    def reached(row: BenchRow, rows: Rows) -> float | None:
        other = rows.get(exact)
        return _ours(other) / _ours(row) / 1.6 if other is not None and other.measured else None

    return reached


_ONE, _TWO, _THREE, _FOUR, _FIVE, _SIX, _SEVEN, _EIGHT, _NINE, _TEN = (s.name for s in GOALS)
GPU_GOALS = (
    Goal(_ONE, "at most the roof / 0.7 and 8 µs", _of_roof(0.7, 0.008)),
    Goal(_ONE, "8 times unshared decode", _ahead(8, "sharing_off", "flashinfer")),
    Goal(_TWO, "at most the roof / 0.6", _of_roof(0.6)),
    Goal(_TWO, "ahead of FlashInfer's cascade", _ahead(1, "cascade")),
    Goal(_THREE, "65 % of the roof", _of_roof(0.65)),
    Goal(_THREE, "1.1 times FlashInfer's cascade", _ahead(1.1, "cascade")),
    Goal(_FOUR, "at most 20 µs", _within(lambda row: 0.020)),
    Goal(_FIVE, "75 % of the roof", _of_roof(0.75)),
    Goal(_SIX, "1.6 times as fast as without int8", _int8_beside(_FIVE)),
    Goal(_SEVEN, "80 % of the roof", _of_roof(0.8)),
    Goal(_SEVEN, "at most 1.1 times FlashInfer's time", _ahead(1 / 1.1, "flashinfer")),
    Goal(_EIGHT, "at most 15 µs", _within(lambda row: 0.015)),
    Goal(_NINE, "350 TFLOP/s", _within(lambda row: GOALS[8].flops / 350e12 * 1e3)),
    Goal(_TEN, "at most twice the roof", _of_roof(0.5)),
    *(
        Goal(shape.name, "at most 1.05 times sharing off", _ahead(1 / 1.05, "sharing_off"))
        for shape in GOALS
    ),
)
_UNSHARED = ("gather_sdpa", "batched_sdpa", "flex")
CPU_GOALS = (
    *(
        goal
        for name in (_EIGHT, CPU_ONLY[0].name)
        for goal in (
            Goal(name, "10 times gather-and-SDPA", _ahead(10, "gather_sdpa")),
            Goal(name, "3 times the best layout that does not share", _ahead(3, *_UNSHARED)),
        )
    ),
    *(
        Goal(shape.name, "0.95 times sharing off and more", _ahead(0.95, "sharing_off"))
        for shape in CPU_ONLY
        if len(shape.counts) == 1
    ),
)

PLANNING = (
    "planning 256 branches over 1,000 nodes: {plan:.2f} ms on a CPU, its cut for a GPU "
    "{cut:.2f} ms; a step onwards {step:.3f} ms"
)


def planning_ms() -> dict[str, float]:
    """Milliseconds to plan 256 branches over 1,000 segments for a CPU, to make of the plan the
    units of a GPU, and to move a plan on by one token; least of 20."""
    batch = level_forest((104, 128, 256, 256, 256), (64, 48, 40, 100, 30))
    least: dict[str, float] = dict.fromkeys(("plan", "cut", "step"), float("inf"))
    for _ in range(20):
        begin = time.perf_counter()
        plan = plan_attention(
            batch, num_heads=9, num_kv_heads=3, head_dim=64, library=native_library()
        )
        planned = time.perf_counter()
        units_of(plan, None, 2)
        cut = time.perf_counter()
        plan.advance(100_000 + np.arange(256, dtype=np.int32))
        times = (planned - begin, cut - planned, time.perf_counter() - cut)
        for name, seconds in zip(least, times, strict=True):
            least[name] = min(least[name], seconds * 1e3)
    return least
