"""lm-evaluation-harness on radixlang and on its own `hf`, side by side in one run.

    RADIXLANG_BBH=folder python -m benchmarks.evaluation [--tasks NAME …] [--limit 20] [--shots 3]
        [--vllm [PYTHON]]

The tasks are BIG-bench Hard's multiple choices, whose JSON files RADIXLANG_BBH names: the harness
reads a task file made here, asks every option of a question in full, and takes the likeliest. Both
run SmolLM2 in float32, each loaded before its clock starts. Prints seconds, their ratio, accuracies
and the largest difference between log-probabilities of a choice, and our default
8-bit model beside them. Fails if accuracies or log-probabilities in float32 differ. With --vllm the
same requests, as token ids, go to vLLM's CPU build in its own environment (PYTHON, by default the
one that `python -m benchmarks.speed --install` makes), asked as the harness asks it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peer_list import PEERS

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "bbh"
TASKS = ("hyperbaton", "logical_deduction_three_objects", "date_understanding")
# A choice of ten tokens differs by up to 1e-4 in `hf` alone, next to the same model in float64.
MAX_DIFFERENCE = 2e-4
MAX_SHOTS = 5  # questions of each file that are kept for the prompt
TASK = """\
task: bbh_{name}
dataset_path: json
dataset_kwargs:
  data_files: {{shots: {shots}, test: {test}}}
  cache_dir: {folder}
test_split: test
fewshot_split: shots
fewshot_config: {{sampler: first_n}}
output_type: multiple_choice
doc_to_text: "{{{{input}}}}\\nA:"
doc_to_choice: "{{{{input.split('Options:\\n')[1].split('\\n')}}}}"
doc_to_target: "{{{{'ABCDEFGHIJKLMNOPQR'.index(target[1])}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one model answered: seconds, accuracies by task, log-probabilities of all choices."""

    seconds: float
    accuracies: dict[str, float]
    logprobs: list[float]


def bbh_folder() -> Path:
    """Where BIG-bench Hard's files are, or would be."""
    return Path(os.environ.get("RADIXLANG_BBH", DATA))


def write_task(name: str, data: Path, folder: Path) -> str:
    """Write a task file over one of BIG-bench Hard's files into a folder; returns its name."""
    rows = json.loads((data / f"{name}.json").read_text("utf-8"))["examples"]
    files = {part: folder / f"{name}.{part}.jsonl" for part in ("shots", "test")}
    for part, some in (("shots", rows[:MAX_SHOTS]), ("test", rows[MAX_SHOTS:])):
        files[part].write_text("".join(json.dumps(row) + "\n" for row in some), "utf-8")
    text = TASK.format(name=name, folder=folder / "cache", **files)
    (folder / f"{name}.yaml").write_text(text, "utf-8")
    return f"bbh_{name}"


def evaluate(model: Any, tasks: list[str], folder: Path, *, limit: int, shots: int) -> Outcome:
    """Run the harness over the tasks of a folder; loading and reading files is not timed."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    loaded = TaskManager(include_path=str(folder), include_defaults=False).load(list[Any](tasks))
    for task in loaded["tasks"].values():
        task.set_config(key="num_fewshot", value=shots)
        task.set_fewshot_seed(seed=0)
    start = time.perf_counter()
    results: Any = lm_eval.evaluate(model, task_dict=loaded, limit=limit, bootstrap_iters=0)
    seconds = time.perf_counter() - start
    samples = [sample for task in tasks for sample in results["samples"][task]]
    return Outcome(
        seconds,
        {task: results["results"][task]["acc,none"] for task in tasks},
        [float(answer[0][0]) for sample in samples for answer in sample["resps"]],
    )


def our_model(path: Path, **options: Any) -> Any:
    """The harness's model over a fresh runtime; `asked` lists its requests and answers."""
    from radixlang.evaluation.harness import RadixLM
    from radixlang.evaluation.scoring import ScoreRequest

    class Recorder(RadixLM):  # type: ignore[misc]
        asked: list[tuple[ScoreRequest, float]]

        def _scores(self, requests: list[ScoreRequest], silent: bool) -> list[tuple[float, bool]]:
            found: list[tuple[float, bool]] = super()._scores(requests, silent)
            totals = (total for total, _ in found)
            self.asked = list(zip(requests, totals, strict=True))
            return found

    return Recorder(path, **options)


def their_model(path: Path, batch_size: int) -> Any:
    """The harness's own model over the same file, in float32."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(str(path.parent), gguf_file=path.name, tokenizer=None, device="cpu",
                dtype="float32", batch_size=batch_size)  # fmt: skip


def compare(path: Path, tasks: list[str], folder: Path, options: argparse.Namespace) -> None:
    """Measure all models in turn and print a line for each."""
    how = {"limit": options.limit, "shots": options.shots}
    ours = our_model(path, quantization=None, dtype="float32")
    exact = evaluate(ours, tasks, folder, **how)
    asked = ours.asked
    ours.close()
    theirs = evaluate(their_model(path, options.batch_size), tasks, folder, **how)
    small = our_model(path)
    rounded = evaluate(small, tasks, folder, **how)
    small.close()
    pairs = zip(exact.logprobs, theirs.logprobs, strict=True)
    worst = max(abs(a - b) for a, b in pairs)
    for name, each in (("hf, float32", theirs), ("radixlang, float32", exact),
                       ("radixlang, 8 bits", rounded)):  # fmt: skip
        found = ", ".join(f"{task} {value:.3f}" for task, value in each.accuracies.items())
        ratio = theirs.seconds / each.seconds
        print(f"{name:20} {each.seconds:8.2f} s  {ratio:6.1f} times hf's speed  {found}")
    if options.vllm is not None:
        compare_vllm(path, Path(options.vllm), asked, theirs.seconds, exact.seconds)
    print(f"{len(exact.logprobs)} choices; float32 differs from hf by {worst:.1e} at most")
    assert worst < MAX_DIFFERENCE, worst
    assert exact.accuracies == theirs.accuracies


def compare_vllm(
    path: Path, python: Path, asked: list[Any], theirs_s: float, ours_s: float
) -> None:
    """Let vLLM score the same requests, and print a line for it."""
    from benchmarks.speed import as_folder

    pairs = [(request.context, request.continuation) for request, _ in asked]
    done = subprocess.run(
        [str(python), str(Path(__file__).parent / "peers" / "vllm_score.py"), str(as_folder(path))],
        input=json.dumps(pairs), text=True, capture_output=True, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        print(f"vLLM: no answer, exit status {done.returncode}: {done.stderr[-600:]}")
        return
    answer = json.loads(lines[-1])
    seconds, name = answer["seconds"], f"vLLM {answer['version']}, float32"
    worst = max(abs(a - b) for a, (_, b) in zip(answer["logprobs"], asked, strict=True))
    print(
        f"{name:20} {seconds:8.2f} s  {theirs_s / seconds:6.1f} times hf's speed; radixlang is "
        f"{seconds / ours_s:.1f} times as fast; its choices differ from ours by {worst:.1e} at most"
    )


def main(arguments: list[str] | None = None) -> None:
    """Parse arguments and compare."""
    from radixlang.runtime.models.locate import find_default_model

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="NAME")
    parser.add_argument("--limit", type=int, default=20, help="questions of each task")
    parser.add_argument("--shots", type=int, default=3)
    parser.add_argument(
        "--vllm", nargs="?", const=str(PEERS["vllm"].python), metavar="PYTHON",
        help="compare with vLLM too, by the interpreter of its environment",
    )  # fmt: skip
    parser.add_argument("--batch-size", type=int, default=8, help="of hf")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tasks = [write_task(name, bbh_folder(), folder) for name in options.tasks]
        compare(find_default_model(), tasks, folder, options)


if __name__ == "__main__":
    main()
