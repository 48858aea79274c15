"""Parses arguments, hands them to a command, and turns its outcome into an exit code.

0: done. 1: the program, or a row of it, failed. 2: wrong usage. 3: no model, or it cannot be
loaded. 130: interrupted. Errors go to stderr; with --json they are also the JSON on stdout.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import radixlang
from radixlang.errors import ModelError, ParameterError, ProgramError, RadixlangError
from radixlang.suggestions import nearest

DONE, FAILED, USAGE, NO_MODEL, INTERRUPTED = 0, 1, 2, 3, 130
COMMANDS = ("run", "chat", "serve", "explain", "lint", "tree", "bench", "doctor", "prefix")
_DESCRIPTION = "Prompt programs that fork, on a runtime that never computes a prefix twice."
_EPILOG = """\
a first try:
  radixlang doctor                              is everything there?
  radixlang explain program.radix               what a run will cost, without a model
  radixlang chat                                talk to the default model
  radixlang run program.py --set name=value     run it, print its variables
  radixlang serve                               OpenAI's API on this machine
  radixlang run program.py --rows in.jsonl --out out.jsonl

exit codes: 0 done, 1 the program or a row failed, 2 wrong usage, 3 no model, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command's exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in words
    if not words:
        build_parser().print_help()
        return USAGE
    try:
        args = _parsed(words)
        code: int = importlib.import_module(f"radixlang.cli.commands.{args.command}").run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("radixlang: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader has closed; Python must not complain at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except RadixlangError as error:
        return _report(error, as_json=as_json)
    except OSError as error:  # of a file to write to: errors of reading are handled there
        return _report(ParameterError(f"{error.filename or words[0]}: {error.strerror}"),
                       as_json=as_json)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """A parser that raises an error for wrong usage instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ParameterError(f"{message}. `{self.prog} --help` says what there is")


def _parsed(words: list[str]) -> argparse.Namespace:
    args, unknown = build_parser().parse_known_args(words)
    if unknown:
        from radixlang.cli.options import flag_of

        hint = _flag_hint(unknown[0], list(map(flag_of, vars(args))))
        raise ParameterError(
            f"{args.command} takes no {unknown[0]!r}; {hint}"
            f"`radixlang {args.command} --help` says what it takes"
        )
    return args


_OTHER_FLAGS = {
    "--model-path": "--model", "--model-name": "--model", "--max-new-tokens": "--max-tokens",
    "--max-model-len": "--context", "--ctx-size": "--context", "--n-ctx": "--context",
    "--temp": "--temperature", "--random-seed": "--seed", "--output": "--out", "--input": "--rows",
    "--arg": "--set", "--args": "--set", "--prefix": "--prefixes",
}  # fmt: skip


def _flag_hint(given: str, known: list[str]) -> str:
    flag = given.partition("=")[0]
    if _OTHER_FLAGS.get(flag) in known:
        return f"it is called {_OTHER_FLAGS[flag]} here; "
    close = nearest(flag, known, cutoff=0.7)
    return f"did you mean {close}? " if close else ""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; it imports nothing heavy."""
    parser = _Parser(
        prog="radixlang", description=_DESCRIPTION, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"radixlang {radixlang.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    from radixlang.cli import options

    for name in COMMANDS:
        getattr(options, f"add_{name}")(commands)
    return parser


def _near(location: str) -> str:
    """A place in a file, relative to the current folder if it is below it."""
    here = os.getcwd() + os.sep
    return location[len(here) :] if location.startswith(here) else location


def _report(error: RadixlangError, *, as_json: bool) -> int:
    from radixlang.views.spans import printable

    location = error.__dict__.get("_location", "")
    place = f"{_near(location)}: " if location and location not in str(error) else ""
    print(printable(f"radixlang: {place}{error}"), file=sys.stderr)
    if as_json:
        found: dict[str, object] = {"type": type(error).__name__, "message": str(error)}
        if location:
            found["location"] = location
        if isinstance(error, ProgramError):
            found |= {"location": location, "branch": list(error.branch),
                      "prompt_tail": error.prompt_tail}  # fmt: skip
        print(json.dumps({"error": found}, ensure_ascii=False))
    if isinstance(error, ModelError):
        return NO_MODEL
    return USAGE if isinstance(error, ParameterError) else FAILED
