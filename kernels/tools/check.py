"""Compile every shipped kernel variant and compare it with the committed table.

    python -m radixlang.kernels.tools.check             compile, print, fail on a regression
    python -m radixlang.kernels.tools.check --update    rewrite the table
    python -m radixlang.kernels.tools.check --target sm_90 --match extend

No device is needed. A variant fails when it spills, takes more than 248 registers, has lost its
asynchronous copies or matrix instruction, waits for all copies before it computes, does not fit a
multiprocessor of its target (twice, for few rows), addresses the pool with 32-bit offsets, or needs
more registers or shared memory than the table says.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from radixlang.kernels.tools.compiled import Report, compile_variant
from radixlang.kernels.tools.variants import TARGETS, KernelVariant, shipped

TABLE = Path(__file__).with_name("compiled_table.json")
MAX_REGISTERS = 248
SHARED_KB = {"sm_80": 164, "sm_86": 100, "sm_89": 100, "sm_90": 228, "sm_100": 228, "sm_120": 100}
SLACK = 8  # registers a compiler may move by without that being news
Fields = dict[str, int | str]  # of a Report
Table = dict[str, Fields]  # by the names of variants


def gates(variant: KernelVariant, target: str, report: Report) -> list[str]:
    """What is wrong with a variant by itself; empty when nothing is."""
    wrong = []
    if report.spills:
        wrong.append(f"spills {report.spills} bytes")
    if report.registers > (512 if target.startswith("gfx") else MAX_REGISTERS):
        wrong.append(f"takes {report.registers} registers")
    if report.narrow_offsets:
        wrong.append(f"makes {report.narrow_offsets} addresses from 32-bit offsets")
    if not variant.is_attention:
        return wrong
    if report.matrix == "-":
        wrong.append("has no matrix instruction")
    half = variant.dtype in ("bf16", "fp16")
    if not target.startswith("gfx"):
        if not report.async_copies:
            wrong.append("has no cp.async.cg")
        if half and not report.outstanding:
            wrong.append("waits for all copies before it computes")
        wrong += _fits(variant, target, report)
    tall = half and variant.tile(target).block_m >= 64
    if target == "sm_90" and tall and not report.matrix.startswith("wgmma"):
        wrong.append(f"uses {report.matrix} where wgmma is due")
    return wrong


def _fits(variant: KernelVariant, target: str, report: Report) -> list[str]:
    """Whether a multiprocessor takes a program, and more than one where few rows leave it idle."""
    shared = SHARED_KB[target] * 1024
    if report.shared_bytes > shared - 1024:
        return [f"takes {report.shared_bytes} bytes shared of {shared}"]
    num = programs_per_sm(variant, target, report)
    few_rows = variant.tile(target).block_m <= 16 and variant.head_dim <= 128
    return [f"runs {num} programs a multiprocessor"] if num < (2 if few_rows else 1) else []


def programs_per_sm(variant: KernelVariant, target: str, report: Report) -> int:
    """Programs of a variant that one multiprocessor has registers and shared memory for."""
    threads = 32 * variant.tile(target).num_warps
    registers = -(-report.registers // 8) * 8 * threads
    shared = report.shared_bytes + 1024  # a program's own, by the driver
    return min(65_536 // registers, SHARED_KB[target] * 1024 // shared, 1536 // threads)


def regressions(report: Report, known: Fields | None) -> list[str]:
    """How a variant is worse than the table; a variant the table lacks is one too."""
    if known is None:
        return ["is not in the table; run with --update"]
    wrong = []
    if report.registers > int(known["registers"]) + SLACK:
        wrong.append(f"takes {report.registers} registers, {known['registers']} before")
    if report.shared_bytes > int(known["shared_bytes"]):
        wrong.append(f"takes {report.shared_bytes} bytes shared, {known['shared_bytes']} before")
    if report.matrix != known["matrix"]:
        wrong.append(f"uses {report.matrix}, {known['matrix']} before")
    return wrong


def load_table() -> Table:
    """The committed table: name to the fields of a report."""
    table: Table = json.loads(TABLE.read_text())["variants"]
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check; the exit status is 1 when anything fails."""
    parser = argparse.ArgumentParser(prog="python -m radixlang.kernels.tools.check")
    parser.add_argument("--update", action="store_true", help="rewrite the table")
    parser.add_argument("--target", choices=TARGETS, help="one target instead of all")
    parser.add_argument("--match", default="", help="only variants whose name has this in it")
    options = parser.parse_args(argv)
    targets = [options.target] if options.target else list(TARGETS)
    variants = [(target, variant) for target in targets for variant in shipped(target)]
    variants = [pair for pair in variants if options.match in pair[1].name(pair[0])]
    known = load_table() if TABLE.exists() else {}
    failed, found = 0, {}
    print(f"{'variant':60} {'regs':>4} {'spill':>5} {'shared':>7}  matrix")
    for target, variant in variants:
        report = compile_variant(variant, target)
        name = variant.name(target)
        found[name] = report.as_dict()
        wrong = gates(variant, target, report)
        if not options.update:
            wrong += regressions(report, known.get(name))
        failed += bool(wrong)
        _print(name, report, wrong)
    if options.update and not failed:
        names = {variant.name(target) for target in TARGETS for variant in shipped(target)}
        _write({name: row for name, row in {**known, **found}.items() if name in names})
    print(f"{len(found)} variants, {failed} failed")
    return 1 if failed else 0


def _print(name: str, report: Report, wrong: list[str]) -> None:
    print(
        f"{name:60} {report.registers:4} {report.spills:5} {report.shared_bytes:7}  "
        f"{report.matrix}{'  ' if wrong else ''}{'; '.join(wrong)}",
        flush=True,
    )


def _write(variants: Table) -> None:
    import triton

    content = {"triton": triton.__version__, "variants": dict(sorted(variants.items()))}
    TABLE.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
