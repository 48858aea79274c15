"""Peak resident memory beside what it is made of: weights, keys and values, and the rest.

    python -m benchmarks.peak                  # the workloads one after another in a process
    python -m benchmarks.peak --alone          # each in a process of its own
    python -m benchmarks.peak --workloads W2 W3 W7 --quantization none

A process loads the model and runs workloads of `benchmarks.speed` one after another, each with an
empty cache. A row has the bytes of the model's weights as they are held, the most keys and
values that the workload had, and the peak of the resident size while it ran, as Linux counts it.
The bound is weights + KV + 300 MB, of which Python, torch and what else a runtime imports take
most before any model is there: the first row. Exit status 1: a workload is above it.

Between two workloads the engine comes to rest, and gives back memory that is free. With --pause 0
it cannot; KV is the most so far then, for what was written once is still there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.peers.radixlang_run import run, run_json
from benchmarks.peers.worker import Call, peak_bytes
from benchmarks.workloads import WORKLOADS, Text, Workload, corpus
from radixlang import Runtime

ALLOWED = 300e6  # bytes beside weights and KV
CORPUS = 120_000  # characters: the prompts of one workload
PART = 4_000  # characters that are tokenised at once, about as many as a prompt has
COLUMNS = ("weights", "KV", "both", "peak resident", "rest")


def main() -> int:
    """Print the table; the exit status says whether every workload is within the bound."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peak", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--quantization", choices=("auto", "int8", "none"), default="auto")
    parser.add_argument("--alone", action="store_true", help="a process for each workload")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between workloads")
    args = parser.parse_args()
    if args.alone:
        options = ["--quantization", args.quantization, "--pause", str(args.pause)]
        return max([run_alone(name, options) for name in args.workloads])
    quantization = None if args.quantization == "none" else args.quantization
    print("| MB | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    row("imports", 0, 0)
    with Runtime(quantization=quantization) as runtime:
        weights = runtime.loaded.model.num_weight_bytes
        row("loading", weights, 0)
        text = corpus()[:CORPUS]
        parts = [text[at : at + PART] for at in range(0, len(text), PART)]
        ids = [token for part in parts for token in runtime.encode(part)]
        rests = []
        for name in args.workloads:
            come_to_rest(runtime, args.pause)
            rests.append(serve(runtime, WORKLOADS[name](Text(ids)), weights))
    return 0 if max(rests) <= ALLOWED else 1


def run_alone(name: str, options: list[str]) -> int:
    """Print the rows of a process that runs nothing but one workload; returns its exit status."""
    command = [sys.executable, "-m", "benchmarks.peak", "--workloads", name]
    return subprocess.run([*command, *options], check=False).returncode


def come_to_rest(runtime: Runtime, pause_s: float) -> None:
    """Leave the engine alone with an empty cache, and begin the next peak."""
    if pause_s:
        runtime.flush_cache()
        time.sleep(pause_s)
        runtime.reset_stats()
    begin_peak()


def serve(runtime: Runtime, workload: Workload, weights: int) -> float:
    """Run a workload and print its row; returns the bytes that are neither weights nor KV."""
    calls = [Call(call.parent, list(call.suffix), call.num_tokens) for call in workload.calls]
    if workload.schema:
        run_json(runtime, calls, workload.schema)
    else:
        run(runtime, calls, workload.levels())
    return row(f"{workload.name}: {workload.about}", weights, runtime.stats().kv_bytes_peak)


def row(name: str, weights: int, kv: int) -> float:
    """Print a row and begin the next peak; returns the bytes that are neither weights nor KV."""
    peak = peak_bytes()
    begin_peak()
    cells = (weights, kv, weights + kv, peak, peak - weights - kv)
    print(f"| {name} | " + " | ".join(f"{cell / 1e6:,.0f}" for cell in cells) + " |", flush=True)
    return peak - weights - kv


def begin_peak() -> None:
    """Let the peak of the resident size begin at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


if __name__ == "__main__":
    raise SystemExit(main())
