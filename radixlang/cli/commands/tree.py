"""`radixlang tree`: the tree that the last run, or a run of a program now, left in the cache."""

from __future__ import annotations

import argparse
import json

from radixlang.cli._runtime import opened_runtime
from radixlang.cli.last_run import WIDTH, LeftTree, keep, last, left_tree
from radixlang.cli.options import flag_of
from radixlang.cli.programs import load_program, run_options, run_program, settings
from radixlang.errors import ParameterError

_WITHOUT_FILE = ("command", "file", "json")  # every other argument is of a run to come


def run(args: argparse.Namespace) -> int:
    """Returns 0; a failed run raises its error."""
    left = _last(args) if args.file is None else _run(args)
    if args.json:
        print(json.dumps(left.to_json(), ensure_ascii=False))
    else:
        print(left)
    return 0


def _last(args: argparse.Namespace) -> LeftTree:
    for name, value in vars(args).items():
        is_given = value is not None and value is not False and value != []
        if is_given and name not in _WITHOUT_FILE:
            raise ParameterError(
                f"{flag_of(name)} goes with FILE; without FILE the tree of the last run is shown"
            )
    left = last()
    if not args.json:
        print(f"{left.program} on {left.model}, {left.ended}\n")
    return left


def _run(args: argparse.Namespace) -> LeftTree:
    program = load_program(args.file)
    arguments = settings(args.settings, program)
    with opened_runtime(args) as runtime:
        run_program(program.bind(**arguments), runtime, run_options(args))
        left = left_tree(program.name, runtime, width=args.width or WIDTH)
    keep(left)
    return left
