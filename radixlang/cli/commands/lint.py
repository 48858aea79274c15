"""`radixlang lint`: places of programs that run, but probably do not do what was meant."""

from __future__ import annotations

import argparse
import json
import os
from typing import TypeAlias

from radixlang.cli.programs import load_programs, own_errors, settings
from radixlang.graph.lints import lint
from radixlang.graph.nodes import Dynamic, Location
from radixlang.program.program import Program

Row: TypeAlias = dict[str, str | int | None]


def run(args: argparse.Namespace) -> int:
    """0 if nothing is doubtful, else 1; a file that cannot be read raises an error."""
    programs = load_programs(args.file)
    looked = [_looked_at(program, args.settings) for program in programs]
    found = [row for rows, _ in looked for row in rows]
    unseen = [place for _, places in looked for place in places]
    if args.json:
        print(json.dumps({"lints": found, "ends_at": unseen}, ensure_ascii=False, indent=2))
    else:
        _print(found, unseen, len(programs))
    return 1 if found else 0


def _looked_at(program: Program, given: list[str]) -> tuple[list[Row], list[str]]:
    """The lints of a program, and the places where its trace had to end."""
    arguments = settings(given, program)
    known = {name: value for name, value in arguments.items() if name in program.parameters}
    with own_errors():
        graph = program.trace(**known)
    rows = [
        {"program": program.name, "file": _file_of(each.location),
         "line": each.location.line if each.location else None,
         "code": each.code, "message": each.message}
        for each in lint(graph, program)
    ]  # fmt: skip
    ends = [node.location for _, node in graph.walk() if isinstance(node, Dynamic)]
    return rows, [f"{_file_of(place)}:{place.line}" for place in ends if place is not None]


def _file_of(place: Location | None) -> str | None:
    if place is None or not os.path.exists(place.file):
        return None if place is None else place.file
    near = os.path.relpath(place.file)
    return place.file if near.startswith("..") else near


def _print(found: list[Row], unseen: list[str], num_programs: int) -> None:
    for row in found:
        print(
            f"{row['file'] or row['program']}:{row['line'] or '?'}: {row['code']} {row['message']}"
        )
    for place in unseen:
        print(f"{place}: here the program looks at a generated value; what follows is not seen")
    programs = "1 program" if num_programs == 1 else f"{num_programs} programs"
    doubtful = {0: "nothing doubtful", 1: "1 doubtful place"}
    print(f"{doubtful.get(len(found), f'{len(found)} doubtful places')} in {programs}")
