"""Peak resident memory beside what it is made of: weights, keys and values, and the rest.

    python -m benchmarks.peak
    python -m benchmarks.peak --workloads W2 W3 W7 --quantization none

One process loads the model and runs workloads of `benchmarks.speed` one after another. A row has
the bytes of the model's weights as they are held, the most keys and values written so far, and
the peak of the resident size since the row before, as Linux counts it. The bound is weights + KV
+ 300 MB, of which Python, torch and what else a runtime imports take most before any model is
there: the first row. Exit status 1: a workload is above it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.peers.radixlang_run import run, run_json
from benchmarks.peers.worker import Call, peak_bytes
from benchmarks.workloads import WORKLOADS, Text, Workload, corpus
from radixlang import Runtime

ALLOWED = 300e6  # bytes beside weights and KV
CORPUS = 120_000  # characters: the prompts of one workload
COLUMNS = ("weights", "KV", "both", "peak resident", "rest")


def main() -> int:
    """Print the table; the exit status says whether every workload is within the bound."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peak", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--quantization", choices=("auto", "int8", "none"), default="auto")
    args = parser.parse_args()
    quantization = None if args.quantization == "none" else args.quantization
    print("| MB | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    row("imports", 0, 0)
    with Runtime(quantization=quantization) as runtime:
        weights = runtime.loaded.model.num_weight_bytes
        row("loading", weights, 0)
        ids = runtime.encode(corpus()[:CORPUS])
        rests = [serve(runtime, WORKLOADS[name](Text(ids)), weights) for name in args.workloads]
    return 0 if max(rests) <= ALLOWED else 1


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
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    cells = (weights, kv, weights + kv, peak, peak - weights - kv)
    print(f"| {name} | " + " | ".join(f"{cell / 1e6:,.0f}" for cell in cells) + " |", flush=True)
    return peak - weights - kv


if __name__ == "__main__":
    raise SystemExit(main())
