"""One answer: do the same prompts give the same bits, whatever else is computed?

    python -m benchmarks.one_answer
    python -m benchmarks.one_answer --prompts 12 --tokens 16 --weights float32 --condition batch
    python -m benchmarks.one_answer --model model.gguf --weights file --set avx2

Each prompt is answered alone with an empty cache, greedily and by a seed, and options are scored
after it. Then the same under each condition (conditions.py), and once more on every instruction set
that this machine has. Prints how many answers differ in their text, and how many in a bit of their
log-probabilities; exits with 1 where one does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.conditions import CONDITIONS, Answer, Condition, Questions, alone, alone_again
from radixlang.kernels.native.library import VARIABLE, isas
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.model import LoadedModel
from radixlang.runtime.process.native_library import native_library

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ("int8", "file", "float32", "bfloat16")


def loaded(weights: str, path: str | None = None) -> LoadedModel:
    """A model, by default the default one, with its weights held in one of WEIGHTS."""
    if weights in ("int8", "file"):
        return load_model(path, quantization=weights)
    return load_model(path, quantization=None, dtype=weights)


def compare(
    model: LoadedModel,
    questions: Questions,
    expected: Sequence[Answer],
    conditions: dict[str, Condition],
    label: str,
) -> int:
    """Print a line a condition; returns the number of answers that differ."""
    wrong = 0
    for name, condition in conditions.items():
        found = condition(model, questions, expected)
        wrong += found.texts + found.numbers
        print(f"| {label} | {name} | {found.texts} | {found.numbers} | {found.answers} |",
              flush=True)  # fmt: skip
    return wrong


def on_set(isa: str, expected: Sequence[Answer], arguments: Sequence[str]) -> bool:
    """Compare in a process on another instruction set; whether nothing differs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "expected.json"
        path.write_text(json.dumps([asdict(each) for each in expected]))
        command = [sys.executable, "-m", "benchmarks.one_answer", *arguments]
        done = subprocess.run(
            [*command, "--expected", str(path)], cwd=ROOT, env=os.environ | {VARIABLE: isa}
        )
    if done.returncode not in (0, 1):
        done.check_returncode()
    return not done.returncode


def sets_below() -> list[str]:
    """Instruction sets of this machine below the one in use, the greatest first."""
    library = native_library()
    if library is None:
        return []
    every = isas(library.path.parent)
    return every[: every.index(library.isa())][::-1]


def compare_sets(weights: str, args: argparse.Namespace) -> bool:
    """All conditions on the greatest instruction set, then on those below; whether none differs."""
    questions = Questions.of(args.prompts, args.tokens)
    model, library = loaded(weights, args.model), native_library()
    conditions = {name: CONDITIONS[name] for name in args.condition if name in CONDITIONS}
    label = f"{weights} | {library.isa() if library else 'torch'}"
    if args.expected:
        expected = [Answer(**each) for each in json.loads(Path(args.expected).read_text())]
        conditions = {"alone": alone_again, **conditions}
        return not compare(model, questions, expected, conditions, label)
    expected = alone(model, questions)
    is_same = not compare(model, questions, expected, conditions, label)
    arguments = ["--prompts", str(args.prompts), "--tokens", str(args.tokens), "--weights", weights,
                 "--condition", *args.condition]  # fmt: skip
    if args.model:
        arguments += ["--model", os.path.abspath(args.model)]
    for isa in args.set:
        is_same &= on_set(isa, expected, arguments)
    return is_same


def main() -> None:
    """Parse arguments, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a file or folder; by default the default model")
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=["int8", "float32"])
    parser.add_argument("--condition", nargs="*", choices=[*CONDITIONS], default=[*CONDITIONS])
    below = sets_below()
    parser.add_argument("--set", nargs="*", choices=below, default=below,
                        help="instruction sets beside the greatest")  # fmt: skip
    parser.add_argument("--expected", help="answers to compare with, from another process")
    args = parser.parse_args()
    if not args.expected:
        print("| weights | set | condition | other texts | other numbers | of |")
        print("|---" * 6 + "|", flush=True)
    is_same = [compare_sets(weights, args) for weights in args.weights]
    sys.exit(0 if all(is_same) else 1)


if __name__ == "__main__":
    main()
