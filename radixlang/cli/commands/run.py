"""`radixlang run`: a program once, or for every row of a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from radixlang.cli._runtime import Opened, opened_runtime
from radixlang.cli.last_run import keep, left_tree
from radixlang.cli.programs import (
    load_program,
    run_options,
    run_program,
    settings,
    typed_cells,
)
from radixlang.cli.run_views import check_views, views_of_a_run, write_row_page
from radixlang.constraints.typed_values import to_json
from radixlang.errors import ParameterError
from radixlang.explain.savings import savings
from radixlang.program.program import Program
from radixlang.progress import row_bar
from radixlang.records.json_text import dump_json
from radixlang.records.result import Result
from radixlang.records.row_files import TABLE_FILES, parse_json_lines, read_rows
from radixlang.state.state import State
from radixlang.views.spans import printable


def run(args: argparse.Namespace) -> int:
    """0, or 1 if a row failed; a failed single run raises its error."""
    program = load_program(args.file)
    bound = program.bind(**settings(args.settings, program))
    if args.out and not args.rows:
        raise ParameterError("--out goes with --rows; a single run prints to stdout")
    check_views(args)
    rows = _read_rows(args.rows, program) if args.rows else None
    with opened_runtime(args) as runtime:
        for name in args.prefixes:
            from radixlang.cli.commands.prefix import load

            load(runtime, name)
        try:
            if rows is None:
                return _run_once(args, bound, runtime)
            return _run_rows(args, bound, rows, runtime)
        finally:  # a failed run leaves its tree too
            keep(left_tree(program.name, runtime))


def _run_once(args: argparse.Namespace, program: Program, runtime: Opened) -> int:
    with views_of_a_run(args):
        state = run_program(program, runtime, run_options(args))
    if args.json:
        print(dump_json(_as_json(program, state, runtime), indent=2))
    else:
        _print_state(args, state)
    if args.stats:
        print(savings(runtime), file=sys.stderr)
    return 0


def _print_state(args: argparse.Namespace, state: State) -> None:
    values = state.values()
    if args.tree:
        print(state.show(color=sys.stdout.isatty()))
    if args.text or not values:
        print(printable(state.text()))
        return
    width = max(map(len, values))
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(to_json(value), ensure_ascii=False)
        first, *rest = printable(text).strip().split("\n")
        print(f"{name:<{width}}  {first}")
        for line in rest:
            print(f"{'':<{width}}  {line}")


def _as_json(program: Program, state: State, runtime: Opened) -> dict[str, object]:
    return {
        "program": program.name,
        "model": runtime.model_name,
        "seed": state.seed,
        "values": to_json(state.values()),
        "text": state.text(),
        "savings": savings(runtime).to_json(),
    }


# ---- rows


def _run_rows(
    args: argparse.Namespace, program: Program, rows: list[dict[str, object]], runtime: Opened
) -> int:
    options = run_options(args)
    options["runtime"] = runtime
    found = program.as_completed(rows, save_to=args.out, **options)
    counts = {"rows": len(rows), "failed": 0, "resumed": 0}
    for result in _in_order(_counted(found, counts), ordered=not args.out):
        write_row_page(args, result.index, result.run_state)
        if not args.out:
            print(dump_json(_row(result)))
    if args.json and args.out:
        print(json.dumps({**counts, "savings": savings(runtime).to_json()}))
    _print_summary(args, counts, runtime)
    return 1 if counts["failed"] else 0


def _counted(results: Iterator[Result], counts: dict[str, int]) -> Iterator[Result]:
    with row_bar(counts["rows"]) as bar:
        for result in results:
            counts["resumed"] += result.run_state is None and result.error is None
            if result.error is not None:
                counts["failed"] += 1
                bar.write(printable(f"row {result.index}: {result.error}"), file=sys.stderr)
            bar.update(1)
            yield result


def _in_order(results: Iterator[Result], *, ordered: bool) -> Iterator[Result]:
    """Results in the order of rows, each as early as possible; or as rows finish."""
    waiting: dict[int, Result] = {}
    following = 0
    for result in results:
        if not ordered:
            yield result
            continue
        waiting[result.index] = result
        while following in waiting:
            yield waiting.pop(following)
            following += 1


def _row(result: Result) -> dict[str, object]:
    error = None if result.error is None else str(result.error)
    return {"index": result.index, "values": to_json(dict(result.values)), "error": error}


def _print_summary(args: argparse.Namespace, counts: dict[str, int], runtime: Opened) -> None:
    if sys.stderr.isatty() or args.stats or counts["failed"]:
        print(f"{counts['rows']} rows: {counts['resumed']} were there already, "
              f"{counts['failed']} failed", file=sys.stderr)  # fmt: skip
    if args.stats:
        print(savings(runtime), file=sys.stderr)


def _read_rows(source: str, program: Program) -> list[dict[str, object]]:
    if source == "-":
        return parse_json_lines(sys.stdin.read(), "-")
    rows = read_rows(source)
    if Path(source).suffix.lower() not in TABLE_FILES:
        return rows
    return [typed_cells(row, program, f"row {index} of {source}") for index, row in enumerate(rows)]
