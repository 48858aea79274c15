"""radixlang and its peers on the same workloads, side by side in one run.

    python -m benchmarks.speed                                 # all workloads, the peers at hand
    python -m benchmarks.speed --workloads W1 W2 --runs 3 --json speed.json
    python -m benchmarks.speed --ablations                     # ourselves, a part off at a time
    python -m benchmarks.speed --lookup                        # the peers guess ahead as well
    python -m benchmarks.speed --install                       # make the peers' environments first

Every peer serves the same GGUF in a process of its own, loaded once. The runs are taken in turn
(ours, theirs, theirs, ours, …); the tables show medians of wall seconds, of the processor's seconds
that a peer's own process took, and theirs over ours. Wall seconds are for a quiet machine.
Greedy, fixed token counts, the same token ids. Text that repeats itself is easier to guess ahead,
so `--text` takes another. W6, a tree of thought, is made of GSM8K's questions and answers where
`--questions` or the variable RADIXLANG_GSM8K names its test set (JSON lines), else of the same
text as the rest. Peers that cannot run are listed with the reason. Quote ratios of one run:
absolute figures drift.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.peer_list import ABLATIONS, ENVIRONMENTS, LOOKUPS, PEERS, Peer, build_flags
from benchmarks.workloads import WORKLOADS, Text, Workload, corpus, read_text

HERE = Path(__file__).parent
FRESH = 8191  # tokens between the texts of two runs
EVERYONE = ABLATIONS | PEERS | LOOKUPS


@dataclass(slots=True)
class Worker:
    """A peer's process and what it has measured: seconds by workload."""

    key: str
    peer: Peer
    process: subprocess.Popen[str]
    version: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    processor_seconds: dict[str, list[float]] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def run(self, workload: Workload) -> list[list[int]] | None:
        """One run, measured by the peer itself; its outputs, or None after an error."""
        if workload.name in self.errors:
            return None
        calls = [(call.parent, call.suffix, call.num_tokens) for call in workload.calls]
        answer = self._ask({"calls": calls, "levels": workload.levels(), "schema": workload.schema})
        if "error" in answer:
            self.errors[workload.name] = answer["error"]
            return None
        self.seconds.setdefault(workload.name, []).append(answer["seconds"])
        self.processor_seconds.setdefault(workload.name, []).append(answer["processor_seconds"])
        self.peak_bytes[workload.name] = answer["peak_bytes"]
        outputs: list[list[int]] = answer["outputs"]
        return outputs

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": "its process has ended"}
        return _read(self.process)

    def close(self) -> None:
        """End the process."""
        _end(self.process)


def _read(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    return {"error": f"its process ended with code {process.wait()}"}


def _end(process: subprocess.Popen[str]) -> None:
    """Kill it, wait for it, and close its pipes."""
    with contextlib.suppress(BrokenPipeError), process:
        process.kill()


def start(key: str, model: Path) -> Worker | str:
    """Start a peer, or say why it cannot run."""
    peer = EVERYONE[key]
    if peer.cannot_run:
        return peer.cannot_run
    if not peer.python.exists():
        return f"no environment at {peer.python.parent.parent}; make it with --install"
    source = as_folder(model) if peer.wants_folder else model
    command = [str(peer.python), str(HERE / "peers" / peer.script), str(source), *peer.arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    hello = _read(process)
    if "error" in hello:
        _end(process)
        return str(hello["error"])
    return Worker(key, peer, process, hello["version"])


def as_folder(model: Path) -> Path:
    """The GGUF's weights as a folder of safetensors in fp32, made once."""
    folder = ENVIRONMENTS / f"{model.stem}-fp32"
    if not folder.exists():
        script = HERE / "peers" / "as_folder.py"
        subprocess.run([sys.executable, str(script), str(model), str(folder)], check=True)
    return folder


def install() -> None:
    """Make the peers' environments. Building llama.cpp takes some minutes."""
    for peer in {p.environment: p for p in PEERS.values() if p.environment}.values():
        folder = ENVIRONMENTS / peer.environment
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip"]
        subprocess.run(
            [*pip, "install", *peer.packages], check=True, env={**os.environ, **build_flags()}
        )
        if peer.without:
            subprocess.run([*pip, "uninstall", "--yes", *peer.without], check=True)


def measure(
    workers: Sequence[Worker],
    names: Sequence[str],
    runs: int,
    ids: list[int],
    questions: list[int] | None = None,
) -> None:
    """All runs of all workloads, the workers in turn, after one of W1 that does not count.

    W6 is made of `questions` where they are given, the rest of `ids`. Ctrl-C ends it early; what
    has been measured counts.
    """
    bar = tqdm(total=len(workers) * (len(names) * runs + 1), unit="run", disable=None)
    turns = [(name, turn) for turn in range(runs) for name in names]
    for number, (name, turn) in enumerate([("W1", -1), *turns], 1):
        source = questions if questions and name == "W6" else ids
        workload = WORKLOADS[name](Text(rotated(source, number * FRESH)))
        # There and back: who follows a peer of the same libraries finds them in memory.
        for worker in workers if turn % 2 == 0 else workers[::-1]:
            bar.set_postfix_str(f"{name} {worker.key}")
            worker.run(workload)
            if turn < 0:
                worker.seconds.clear()
                worker.processor_seconds.clear()
                worker.errors.clear()
            bar.update(1)
    bar.close()


def rotated(ids: list[int], by: int) -> list[int]:
    """Another text for each run: some peers' caches outlive a run."""
    by %= len(ids)
    return ids[by:] + ids[:by]


Times = Callable[[Worker], dict[str, list[float]]]


def medians(what: str, workers: Sequence[Worker], names: Sequence[str], times: Times) -> list[str]:
    """A table in Markdown: medians, and their ratios to the first worker's."""
    ours = times(workers[0])
    lines = [
        f"| median {what} (theirs ÷ ours) | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for worker in workers:
        theirs, cells = times(worker), []
        for name in names:
            if name not in theirs:
                cells.append("failed" if name in worker.errors else "not run")
                continue
            mine = statistics.median(theirs[name])
            base = statistics.median(ours[name]) if name in ours else mine
            is_ours = worker is workers[0]
            cells.append(f"{mine:.2f}" if is_ours else f"{mine:.2f} ({mine / base:.2f}×)")
        lines.append(f"| {worker.peer.name} {worker.version} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def table(workers: Sequence[Worker], names: Sequence[str], missing: dict[str, str]) -> str:
    """Medians and ratios in Markdown, wall seconds and the processor's."""
    lines = medians("wall seconds", workers, names, lambda worker: worker.seconds)
    lines += medians("processor seconds", workers, names, lambda worker: worker.processor_seconds)
    lines += [f"- {name}: {WORKLOADS[name](Text(range(4096))).about}" for name in names]
    for worker in workers:
        lines += [f"- {worker.peer.name}, {n}: {why}" for n, why in worker.errors.items()]
        peak = max(worker.peak_bytes.values(), default=0)
        lines.append(f"- {worker.peer.name}: peak resident memory {peak / 1e6:,.0f} MB")
    lines += [f"- {EVERYONE[key].name}: not run, {why}" for key, why in missing.items()]
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run, print."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    whom = parser.add_mutually_exclusive_group()
    whom.add_argument("--peers", nargs="+", choices=list(EVERYONE), default=list(PEERS))
    whom.add_argument(
        "--ablations", dest="peers", action="store_const", const=list(ABLATIONS),
        help="ourselves only, with one part off at a time",
    )  # fmt: skip
    whom.add_argument(
        "--lookup", dest="peers", action="store_const", const=list(LOOKUPS),
        help="the peers that can guess ahead by looking the prompt up, with that switched on",
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a GGUF file; the default model without it")
    parser.add_argument(
        "--text", type=read_text, metavar="FILE",
        help="what prompts are made of, text or JSON lines; by default our own pages and sources",
    )  # fmt: skip
    parser.add_argument(
        "--questions", metavar="FILE", default=os.environ.get("RADIXLANG_GSM8K"),
        help="GSM8K's test set, for W6; by default what RADIXLANG_GSM8K names",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--install", action="store_true", help="make the peers' environments")
    args = parser.parse_args()
    if args.install:
        install()
        return
    from radixlang.runtime.models.gguf.file import GgufFile
    from radixlang.runtime.models.loader import load_gguf_tokenizer
    from radixlang.runtime.models.locate import find_default_model

    model = args.model or find_default_model()
    encode = load_gguf_tokenizer(GgufFile(model)).encode
    started = {key: start(key, model) for key in args.peers}
    workers = [worker for worker in started.values() if isinstance(worker, Worker)]
    missing = {key: why for key, why in started.items() if isinstance(why, str)}
    try:
        questions = encode(read_text(args.questions)) if args.questions else None
        measure(workers, args.workloads, args.runs, encode(args.text or corpus()), questions)
    except KeyboardInterrupt:
        print("ended early\n")
    finally:
        for worker in workers:
            worker.close()
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.machine()}\n")
    print(table(workers, args.workloads, missing))
    if "W6" in args.workloads:
        print(f"- W6's text: {Path(args.questions).name if args.questions else 'that of the rest'}")
    if args.json:
        kept = ("seconds", "processor_seconds", "peak_bytes", "version", "errors")
        figures = {w.key: {name: getattr(w, name) for name in kept} for w in workers}
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
