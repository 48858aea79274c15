"""From an empty process to the first token, with and without a prefix saved beforehand.

    python -m benchmarks.start
    python -m benchmarks.start --tokens 1024 --runs 5

Every run is a process of its own, plain and with the prefix in turn; medians. The prompt is
`--tokens` of real text and a question of 16 tokens; the saved prefix is the text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STAGES = ("imports", "model", "prefix", "first token")
NUM_QUESTION_TOKENS = 16


def main() -> None:
    """Parse arguments, run, print."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.start", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of the prefix")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        child(**args.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(args.tokens, args.runs, str(Path(folder) / "start.prefix"))


def compare(num_tokens: int, num_runs: int, path: str) -> None:
    """Print the table."""
    one(num_tokens, path, "save")
    found: dict[str, list[list[float]]] = {"plain": [], "with the prefix": []}
    for _ in range(num_runs):
        found["plain"].append(one(num_tokens, path, "none"))
        found["with the prefix"].append(one(num_tokens, path, "load"))
    print(f"{num_tokens} + {NUM_QUESTION_TOKENS} tokens, seconds, medians of {num_runs}\n")
    print("| start | " + " | ".join(STAGES) + " | request | all |")
    print("|---" * (len(STAGES) + 3) + "|")
    requests = []
    for name, runs in found.items():
        stages = [statistics.median(column) for column in zip(*runs, strict=True)]
        requests.append(stages[-2] + stages[-1])
        cells = [*stages, requests[-1], sum(stages)]
        print(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    print(f"\nThe first request takes {1 - requests[1] / requests[0]:.0%} less with the prefix.")


def one(num_tokens: int, path: str, prefix: str) -> list[float]:
    """Seconds of each stage in a process of its own."""
    options = {"num_tokens": num_tokens, "path": path, "prefix": prefix, "began": time.time()}
    command = [sys.executable, "-m", "benchmarks.start", "--child", json.dumps(options)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def child(num_tokens: int, path: str, prefix: str, began: float) -> None:
    """Start, answer one request, print the seconds of each stage."""
    from benchmarks.workloads import corpus
    from radixlang import Runtime, SamplingParams
    from radixlang.runtime.saved_prefixes.store import load_prefix, save_prefix

    imported = time.time()
    with Runtime() as runtime:
        loaded = time.time()
        ids = runtime.tokenizer.encode(corpus()[: 16 * num_tokens])
        prompt = ids[: num_tokens + NUM_QUESTION_TOKENS]
        if prefix == "save":
            save_prefix(runtime, prompt[:num_tokens], path)
        ready = time.time()
        if prefix == "load":
            load_prefix(runtime, path)
        warm = time.time()
        branch = runtime.new_branch()
        branch.extend(prompt)
        branch.generate(SamplingParams(max_tokens=1, temperature=0)).result()
        done = time.time()
        branch.release()
    print(json.dumps([imported - began, loaded - imported, warm - ready, done - warm]))


if __name__ == "__main__":
    main()
