"""`radixlang tree`: run a program and draw what it left in the cache."""

from __future__ import annotations

import argparse
import json

from radixlang.cli.door import opened_runtime
from radixlang.cli.programs import load_program, run_options, run_program, settings
from radixlang.report import savings


def run(args: argparse.Namespace) -> int:
    """Always 0; a failed run raises its error."""
    program = load_program(args.file)
    arguments = settings(args.settings, program)
    with opened_runtime(args) as runtime:
        run_program(program, runtime, {**arguments, **run_options(args)})
        tree, found = runtime.tree_text(max_text=args.width), savings(runtime)
    if args.json:
        print(json.dumps({"tree": tree, "savings": found.to_json()}, ensure_ascii=False))
    else:
        print(f"{tree}\n\n{found}")
    return 0
