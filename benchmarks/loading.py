"""How long a model takes to load, and the memory that loading and one generation need.

    python -m benchmarks.loading model.gguf [--quantization file] [--runs 2]

Each run is a process of its own; the first may have to cache 8-bit weights. Memory is the peak
resident size of the process, Python and torch with it, in MB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

_RUN = """
import sys, time
began, cpu = time.perf_counter(), time.process_time()
from radixlang import Runtime, SamplingParams
imported = time.perf_counter()
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1e3
path, quantization = sys.argv[1:]
before = time.process_time()
runtime = Runtime(path, quantization=quantization)
loaded, busy = time.perf_counter() - imported, time.process_time() - before
size = peak()
branch = runtime.new_branch()
branch.extend("A tree of tokens, " * 100)
branch.generate(SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)).result()
print(f"| {imported - began:.1f} | {loaded:.1f} | {busy:.1f} | {size:,.0f} | {peak():,.0f} |")
"""


def main() -> None:
    """Parse arguments, run, print."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loading", description=__doc__, formatter_class=raw
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--runs", type=int, default=2)
    args = parser.parse_args()
    print(f"{args.model.name}: {args.model.stat().st_size / 1e6:,.0f} MB\n")
    print("| imports, s | load, s | processor time | peak after loading, MB | after a generation |")
    print("|---|---|---|---|---|")
    for _ in range(args.runs):
        command = [sys.executable, "-c", _RUN, str(args.model), args.quantization]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
