"""The bench reports only what it checked, and says what it did not measure. Nothing is timed."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from radixlang.kernels.gpu.plan.work_units import build_units
from radixlang.kernels.plan.topology import build_topology
from radixlang.kernels.tools import bench, bench_baselines, bench_flashinfer
from radixlang.kernels.tools.bench_goals import CPU_GOALS, GPU_GOALS, Goal, Verdict, judge
from radixlang.kernels.tools.bench_shapes import (
    CPU_ONLY,
    GOALS,
    BenchRow,
    Ceiling,
    Shape,
    host_timer,
    roof_s,
    without_sharing,
)

TINY = Shape("tiny", (1, 3), (70, 9), (6, 2), 16)
CEILING = Ceiling(bytes_per_s=1e9, flops_per_s=1e12)


def once(runs: Sequence[Callable[[], object]]) -> list[float]:
    for run in runs:
        run()
    return [0.002] * len(runs)


def measure(shape: Shape, dtype: torch.dtype = torch.float32) -> BenchRow:
    return bench.measure(shape, dtype, torch.device("cpu"), CEILING, once, flex=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_way_is_measured(dtype: torch.dtype) -> None:
    row = measure(TINY, dtype)
    assert row.times_ms == {
        "ours": 2.0, "sharing_off": 2.0, "gather_sdpa": 2.0, "batched_sdpa": 2.0, "flex": None,
        "deterministic": 2.0, "flashinfer": None, "cascade": None,
    }  # fmt: skip


def test_ways_that_do_not_apply_have_no_number() -> None:
    extend = measure(Shape("extend", (1, 2), (40, 20), (4, 2), 16, num_queries=20))
    assert extend.times_ms["batched_sdpa"] is None
    cold = measure(Shape("cold", (1, 2), (40, 20), (4, 2), 16, quantized=True))
    assert cold.times_ms["sharing_off"] is None
    assert cold.times_ms["ours"] == 2.0


def test_a_wrong_result_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    right = bench_baselines.ours

    def wrong(case: bench_baselines.BenchCase, **choice: bool) -> bench_baselines.Run:
        run = right(case, **choice)
        return lambda: run() * torch.nan

    monkeypatch.setattr(bench_baselines, "ours", wrong)
    with pytest.raises(RuntimeError, match="tiny: ours is off by nan"):
        measure(TINY)


def test_the_roof_counts_each_shared_key_once() -> None:
    """70 shared keys by 9 packed rows and 3 x 9 keys by 3, 2 key heads of 16, by hand."""
    moved = 2 * 16 * 2 * 4 * (70 + 27) / 1e9
    assert roof_s(TINY, 4, CEILING) == pytest.approx(moved)
    slow = Ceiling(bytes_per_s=1e15, flops_per_s=1e9)
    assert roof_s(TINY, 4, slow) == pytest.approx(4 * 32 * (9 * 70 + 3 * 27) / 0.5e9)


def test_sharing_off_reads_the_same_slots() -> None:
    batch = TINY.batch()
    apart = without_sharing(batch)
    assert [len(slots) for slots in apart.segment_slots] == [79, 79, 79]
    assert apart.segment_slots[1][:70].tolist() == batch.segment_slots[0].tolist()


def test_the_goals_are_ten_and_the_table_names_what_was_not_measured() -> None:
    assert len(GOALS) == 10
    assert all(shape.on_cpu for shape in CPU_ONLY)
    text = bench.table([bench.unmeasured(GOALS[0]), measure(TINY)])
    assert "not measured" in text.splitlines()[1]
    assert "2.000" in text.splitlines()[2]


def test_the_command_writes_its_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "host_timer", once)
    monkeypatch.setattr(bench, "GOALS", (TINY,))
    monkeypatch.setattr(bench, "CPU_ONLY", (Shape("on", (1, 2), (9, 3), (2, 1), 16, on_cpu=True),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "numbers.json"
    assert bench.main(["--json", str(path)]) == 0
    content = json.loads(path.read_text())
    assert [row["roof_ms"] is None for row in content["rows"]] == [True, False]
    assert {goal["reached"] for goal in content["goals"]} == {None}, "none of these is a goal"
    assert sorted(content["planning_ms"]) == ["cut", "plan", "step"]
    printed = capsys.readouterr().out
    assert "not measured" in printed
    assert "FlashInfer: " in printed


def row_of(shape: Shape, roof_ms: float = 1.0, **times_ms: float) -> BenchRow:
    return BenchRow(shape.name, roof_ms, {**dict.fromkeys(bench.COLUMNS), **times_ms})


def verdicts(rows: list[BenchRow], goals: tuple[Goal, ...]) -> dict[str, float | None]:
    return {f"{v.shape}: {v.text}": v.reached for v in judge(rows, goals)}


def test_goals_of_a_cpu_by_hand() -> None:
    fast = row_of(GOALS[7], ours=1, sharing_off=2, gather_sdpa=15, batched_sdpa=6, flex=2.4)
    alone = row_of(CPU_ONLY[1], ours=2, sharing_off=1.8, gather_sdpa=9)
    found = verdicts([fast, alone, bench.unmeasured(CPU_ONLY[0])], CPU_GOALS)
    assert found[f"{fast.shape}: 10 times gather-and-SDPA"] == pytest.approx(1.5)
    assert found[f"{fast.shape}: 3 times the best layout that does not share"] == pytest.approx(0.8)
    assert found[f"{alone.shape}: 0.95 times sharing off and more"] == pytest.approx(0.9 / 0.95)
    assert found[f"{CPU_ONLY[0].name}: 10 times gather-and-SDPA"] is None


def test_goals_of_a_gpu_by_hand() -> None:
    rows = [
        row_of(GOALS[0], 0.7, ours=1.0, sharing_off=12, flashinfer=10),
        row_of(GOALS[1], 0.9, ours=1.0),
        row_of(GOALS[4], 1.5, ours=1.0),
        row_of(GOALS[5], ours=0.5),
        row_of(GOALS[6], ours=1.0, sharing_off=1.0, flashinfer=0.9),
        row_of(GOALS[7], ours=0.030),
        row_of(GOALS[8], ours=20.0),
    ]
    found = verdicts(rows, GPU_GOALS)
    names = [shape.name for shape in GOALS]
    expected = {
        f"{names[0]}: at most the roof / 0.7 and 8 µs": 1.008,
        f"{names[0]}: 8 times unshared decode": 10 / 8,
        f"{names[0]}: at most 1.05 times sharing off": 12.6,
        f"{names[1]}: at most the roof / 0.6": 1.5,
        f"{names[1]}: ahead of FlashInfer's cascade": None,
        f"{names[4]}: 75 % of the roof": 2.0,
        f"{names[5]}: 1.6 times as fast as without int8": 2 / 1.6,
        f"{names[6]}: at most 1.1 times FlashInfer's time": 0.99,
        f"{names[7]}: at most 15 µs": 0.5,
        f"{names[3]}: at most 20 µs": None,
    }
    for name, value in expected.items():
        assert found[name] == (None if value is None else pytest.approx(value)), name
    keys = 8192 + 256.5  # that a row sees in the mean: 32 branches of 512 rows, 32 heads of 128
    tera = 4 * 32 * 128 * 32 * 512 * keys / 1e12
    assert found[f"{names[8]}: 350 TFLOP/s"] == pytest.approx(tera / 0.020 / 350)


def test_a_verdict_says_reached_missed_or_not_measured() -> None:
    lines = [Verdict("a", "b", number).line for number in (1.0, 0.5, None)]
    assert lines == ["reached: a: b (1.00 of it)", "MISSED: a: b (0.50 of it)",
                     "not measured: a: b"]  # fmt: skip


def test_runs_take_turns_up_and_down() -> None:
    turns: list[int] = []
    host_timer([lambda: turns.append(0), lambda: turns.append(1)], seconds=0)
    assert turns == [0, 1, 1, 0]


def test_flashinfer_is_asked_the_same_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of its two wrappers answers from the tables that it is given."""
    module = types.ModuleType("flashinfer")
    module.BatchDecodeWithPagedKVCacheWrapper = Paged  # type: ignore[attr-defined]
    module.MultiLevelCascadeAttentionWrapper = Cascade  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    case = bench_baselines.make_case(TINY, torch.float32, torch.device("cpu"))
    expected = bench_baselines.gather_and_sdpa(case)()
    for run in (bench_flashinfer.decode(case), bench_flashinfer.cascade(case)):
        assert run is not None
        torch.testing.assert_close(run(), expected)
    extend = dataclasses.replace(case, shape=dataclasses.replace(TINY, num_queries=2))
    assert bench_flashinfer.decode(extend) is None
    assert bench_flashinfer.cascade(extend) is None


class Cascade:
    """What MultiLevelCascadeAttentionWrapper is documented to read, a row at a time."""

    def __init__(self, *_: object) -> None: ...

    def plan(self, rows, tables, indices, last, heads, kv_heads, dim, page, **_):  # type: ignore[no-untyped-def]
        assert page == 1
        self.levels = list(zip(rows, tables, indices, strict=True))
        assert all((ones == 1).all() for ones in last)
        self.group = heads // kv_heads

    def run(self, q: torch.Tensor, planes: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        outs = []
        for row, one in enumerate(q):
            parts = []
            for rows, table, index in self.levels:
                at = int(torch.searchsorted(rows, row, right=True)) - 1
                parts.append(index[table[at] : table[at + 1]])
            path = torch.cat(parts).long()
            k, v = (plane[path, 0].repeat_interleave(self.group, 1) for plane in planes)
            weight = torch.einsum("hd,nhd->hn", one, k).mul(one.shape[-1] ** -0.5).softmax(-1)
            outs.append(torch.einsum("hn,nhd->hd", weight, v))
        return torch.stack(outs)


class Paged(Cascade):
    """And BatchDecodeWithPagedKVCacheWrapper: one level, a row each."""

    def __init__(self, *_: object, use_tensor_cores: bool) -> None:
        self.tensor_cores = use_tensor_cores

    def plan(self, table, index, last, heads, kv_heads, dim, page, **_):  # type: ignore[no-untyped-def, override]
        assert self.tensor_cores == (heads // kv_heads == 3)
        rows = torch.arange(len(table))
        super().plan([rows], [table], [index], [last], heads, kv_heads, dim, page)


def test_the_roofs_on_paper_are_those_of_the_code() -> None:
    """The table of docs/kernels.md: microseconds at an H100's rates, and programs of a launch."""
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")
    told = [line.split("|")[1:-1] for line in page.splitlines() if line.endswith("| not yet |")]
    assert len(told) == len(GOALS)
    ceiling = Ceiling(3.35e12, 989e12)
    for shape, (name, _, _, roof_us, programs, _) in zip(GOALS, told, strict=True):
        heads, kv_heads = shape.heads
        units = build_units(
            build_topology(shape.batch()), group_size=heads // kv_heads, num_kv_heads=kv_heads,
            head_dim=shape.head_dim,
        )  # fmt: skip
        lists = [*units.lists, *([] if units.extend is None else [units.extend])]
        assert name.split()[0] == shape.name.split()[0]
        assert int(programs.replace(",", "")) == kv_heads * sum(len(part.units) for part in lists)
        roof = roof_s(shape, 2, ceiling) * 1e6
        assert float(roof_us.replace(",", "")) == pytest.approx(roof, rel=0.03, abs=0.6)
