"""Measure attention on the shapes of the goals against its baselines, on this device.

    python -m radixlang.kernels.tools.bench              a table; CPU shapes where there is no GPU
    python -m radixlang.kernels.tools.bench --json out.json  and the numbers
    python -m radixlang.kernels.tools.bench --flex       FlexAttention too (compiles for a minute)

Every result is compared with gather-and-SDPA before it is timed; a wrong one is not reported. Below
the table stand the goals that these shapes were chosen for, reached or missed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from radixlang.kernels.tools import bench_baselines as baselines
from radixlang.kernels.tools import bench_flashinfer as flashinfer
from radixlang.kernels.tools.bench_goals import CPU_GOALS, GPU_GOALS, PLANNING, judge, planning_ms
from radixlang.kernels.tools.bench_shapes import (
    CPU_ONLY,
    GOALS,
    BenchRow,
    Ceiling,
    Shape,
    Timer,
    device_timer,
    host_timer,
    measure_ceiling,
    roof_s,
)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
COLUMNS = (
    "ours", "sharing_off", "gather_sdpa", "batched_sdpa", "flex",
    "deterministic", "flashinfer", "cascade",
)  # fmt: skip


def measure(
    shape: Shape, dtype: torch.dtype, device: torch.device, ceiling: Ceiling, timer: Timer,
    *, flex: bool,
) -> BenchRow:  # fmt: skip
    """Check, then time, every way of attending over one shape.

    Raises RuntimeError when our result is not the baseline's.
    """
    case = baselines.make_case(shape, dtype, device)
    gather = baselines.gather_and_sdpa(case)
    runs: dict[str, baselines.Run | None] = {
        "ours": baselines.ours(case),
        "sharing_off": None if shape.quantized else baselines.ours(case, sharing=False),
        "gather_sdpa": gather,
        "batched_sdpa": baselines.batched_sdpa(case),
        "flex": baselines.flex_attention(case) if flex else None,
        "deterministic": baselines.ours(case, deterministic=True),
        "flashinfer": None,
        "cascade": None,
    }
    if flashinfer.why_not(device) is None:
        runs |= {"flashinfer": flashinfer.decode(case), "cascade": flashinfer.cascade(case)}
    expected = gather().float()
    limit = 0.03 if shape.quantized or dtype != torch.float32 else 1e-4
    for name, run in runs.items():
        error = 0.0 if run is None else float((run().float() - expected).abs().max())
        if not error < limit:
            raise RuntimeError(f"{shape.name}: {name} is off by {error}; nothing is reported")
    times: dict[str, float | None] = dict.fromkeys(runs)
    there = {name: run for name, run in runs.items() if run is not None}
    for name, time_s in zip(there, timer(list(there.values())), strict=True):
        times[name] = time_s * 1e3
    return BenchRow(shape.name, roof_s(shape, dtype.itemsize, ceiling) * 1e3, times)


def unmeasured(shape: Shape) -> BenchRow:
    """A shape that this device was not asked for."""
    return BenchRow(shape.name, None, dict.fromkeys(COLUMNS))


def table(rows: Sequence[BenchRow]) -> str:
    """Times in milliseconds, and how many times ours they and the roof are."""
    names = ("off", "gather", "batched", "flex", "exact", "flashinf.", "cascade",
             "x off", "x gather", "x batched")  # fmt: skip
    lines = [f"{'shape':32} {'ours':>9} {'/ roof':>7} " + " ".join(f"{name:>9}" for name in names)]
    for row in rows:
        mine = row.times_ms["ours"]
        if row.roof_ms is None or mine is None:
            lines.append(f"{row.shape:32} not measured")
            continue
        cells = [row.times_ms[name] for name in COLUMNS[1:]]
        cells += [row.times_ours(name) for name in ("sharing_off", "gather_sdpa", "batched_sdpa")]
        lines.append(
            f"{row.shape:32} {mine:9.3f} {mine / row.roof_ms:7.1f} "
            + " ".join(_cell(value) for value in cells)
        )
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return f"{value:9.3f}" if value is not None else f"{'-':>9}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status is 0 unless a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m radixlang.kernels.tools.bench")
    parser.add_argument("--dtype", choices=DTYPES, help="default: fp32 on a CPU, bf16 on a GPU")
    parser.add_argument("--match", default="", help="only shapes whose name has this in it")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--flex", action="store_true", help="measure FlexAttention too")
    parser.add_argument("--threads", type=int, help="threads on the CPU")
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    timer: Timer = device_timer if gpu else host_timer
    dtype = DTYPES[options.dtype or ("bf16" if gpu else "fp32")]
    ceiling = measure_ceiling(device, dtype, timer)
    where = torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads"
    print(
        f"{where}, {dtype}, torch {torch.__version__}: {ceiling.bytes_per_s / 1e9:.1f} GB/s, "
        f"{ceiling.flops_per_s / 1e9:.0f} GFLOP/s; milliseconds a layer"
    )
    rows = []
    for shape in GOALS if gpu else (*GOALS, *CPU_ONLY):
        if options.match in shape.name:
            wanted = gpu or shape.on_cpu
            rows.append(
                measure(shape, dtype, device, ceiling, timer, flex=options.flex)
                if wanted
                else unmeasured(shape)
            )
    print(table(rows))
    verdicts = judge(rows, GPU_GOALS if gpu else CPU_GOALS)
    print("\n".join(verdict.line for verdict in verdicts))
    planning = planning_ms()
    print(PLANNING.format(**planning))
    if (reason := flashinfer.why_not(device)) is not None:
        print(f"FlashInfer: {reason}")
    if options.json:
        content = {"device": where, "machine": platform.machine(), "dtype": str(dtype),
                   "torch": torch.__version__, "ceiling": asdict(ceiling),
                   "rows": [asdict(row) for row in rows],
                   "goals": [asdict(verdict) for verdict in verdicts],
                   "planning_ms": planning}  # fmt: skip
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
