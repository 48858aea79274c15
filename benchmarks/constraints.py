"""Constrained generation, measured: `python -m benchmarks.constraints`.

Prints one table: what the suites say of JSON schemas, what lark says of grammars, how long masks
and compiling take with the default model's vocabulary, and what a constraint costs a generation.
Exceptions to "no valid text refused, no invalid one accepted" are kept by cause in
constraints_ratchet.json; a new one fails the run, `--update` writes them anew.

    python -m benchmarks.constraints                  everything
    python -m benchmarks.constraints --only suite fork    some rows
    python -m benchmarks.constraints --only repository --grammars FOLDER    of a checkout of lark
    python -m benchmarks.constraints --only maskbench --maskbench FOLDER    all of MaskBench
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.constraint_grammars import fuzz_row, grammar_row, walk_row
from benchmarks.constraint_repository import repository_row
from benchmarks.constraint_schemas import DATA, MASKBENCH, SUITE, Verdicts, mask_bench, suite
from benchmarks.constraint_speed import engine_row, fork_row, generation_rows, mask_rows

RATCHET = Path(__file__).parent / "constraints_ratchet.json"
Row = tuple[str, str, str]  # name, goal, measured


def suite_rows(found: dict[str, Verdicts]) -> list[Row]:
    """The JSON Schema Test Suite, 2020-12 core, strict: with formats as it has them, and as we."""
    if not SUITE.exists():
        return [("Test Suite 2020-12", "", f"{SUITE.name} is not in {DATA}")]
    as_it_says = found["suite strict"] = suite("annotate")
    by_default = found["suite strict, formats asserted"] = suite("assert")
    goal = ">= 60 % pass, 0 under, <= 1.7 % over"
    return [
        ("Test Suite 2020-12, strict", goal, as_it_says.summary()),
        ("the same, formats asserted", "", by_default.summary()),
    ]


def mask_bench_rows(found: dict[str, Verdicts], source: Path | None = None) -> list[Row]:
    """MaskBench, or its sample, strict and lenient with its check of the finished text."""
    whole = source or MASKBENCH
    if not whole.exists():
        return [("MaskBench sample", "", f"{whole.name} is not in {whole.parent}")]
    goals = {True: ">= 88 % pass, 0 under", False: ">= 95 % pass"}
    rows = []
    for strict, goal in goals.items():
        name = f"MaskBench{'' if source else ' sample'}, {'strict' if strict else 'lenient'}"
        kept = f"{whole.name if source else 'maskbench'} {'strict' if strict else 'lenient'}"
        verdicts = found[kept] = mask_bench(strict, whole)
        rows.append((name, goal, verdicts.summary()))
    return rows


def compare_with_ratchet(found: dict[str, Verdicts], update: bool) -> list[str]:
    """Exceptions that the committed file does not have."""
    kept = json.loads(RATCHET.read_text(encoding="utf-8")) if RATCHET.exists() else {}
    new = []
    for name, verdicts in found.items():
        known = {case for cases in kept.get(name, {}).values() for case in cases}
        listed = verdicts.exceptions()
        new += [f"{name}: {c} ({why})" for why, cases in listed.items() for c in cases
                if c not in known]  # fmt: skip
        if update:
            kept[name] = listed
    if update:
        text = json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True)
        RATCHET.write_text(text + "\n", encoding="utf-8")
        return []
    return new


def main() -> int:
    """Print the table; the exit status tells whether an exception is new."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", default=None, help="rows to run")
    parser.add_argument(
        "--grammars", type=Path, help="a folder of lark grammars, such as a checkout"
    )
    parser.add_argument(
        "--maskbench", type=Path, help="all of MaskBench: a folder of its cases, or JSON lines"
    )
    parser.add_argument("--update", action="store_true", help="write the ratchet file anew")
    options = parser.parse_args()
    found: dict[str, Verdicts] = {}
    rows: dict[str, Callable[[], list[Row]]] = {
        "suite": lambda: suite_rows(found),
        "maskbench": lambda: mask_bench_rows(found, options.maskbench),
        "mask": mask_rows,
        "engine": engine_row,
        "fork": fork_row,
        "grammars": grammar_row,
        "repository": lambda: repository_row(options.grammars),
        "walks": walk_row,
        "fuzz": fuzz_row,
        "generation": generation_rows,
    }
    print(f"{'':34}{'goal':40}measured")
    for name, make in rows.items():
        if options.only is None or name in options.only:
            for title, goal, measured in make():
                print(f"{title:34}{goal:40}{measured}", flush=True)
    new = compare_with_ratchet(found, options.update)
    for line in new:
        print(f"NEW EXCEPTION {line}")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
