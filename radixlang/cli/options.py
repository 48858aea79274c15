"""The arguments of every command, declared in one place. Nothing here is heavy to import."""

from __future__ import annotations

import argparse
from typing import Any

Commands = Any  # argparse's own type for this is private
_PROGRAM_HELP = (
    "a .radix template, or a Python file with a @radixlang.function; FILE:NAME picks one of several"
)


def add_run(commands: Commands) -> None:
    """`run`: one run, or one for every row of a file."""
    parser = _parser(
        commands, "run", "run a program, once or for every row of a file",
        "Run a program and print its variables. With --rows it runs once a row; rows that --out\n"
        "already holds are not run again, so an interrupted batch goes on where it stopped.",
    )  # fmt: skip
    _program(parser)
    rows = parser.add_argument_group("many rows")
    rows.add_argument("--rows", metavar="FILE", help="JSON lines, each an object of arguments; "
                      "- reads stdin")  # fmt: skip
    rows.add_argument("--out", metavar="FILE",
                      help="append results here as JSON lines, as they come")  # fmt: skip
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--text", action="store_true", help="print the whole prompt and its answers")
    shown.add_argument("--tree", action="store_true", help="print the tree of the run")
    shown.add_argument("--html", metavar="FILE", help="write the view of the run as one HTML file")
    shown.add_argument("--stats", action="store_true", help="print what sharing saved, to stderr")
    _sampling(parser)
    _runtime(parser)
    parser.add_argument("--prefixes", metavar="NAME", action="append", default=[],
                        help="load prefixes that `radixlang prefix build` saved")  # fmt: skip


def add_explain(commands: Commands) -> None:
    """`explain`: predictions without a model."""
    parser = _parser(
        commands, "explain", "predict tokens, sharing and memory, without a model",
        "Trace a program and count what a run will take: tokens by edge, shared against\n"
        "computed, peak KV. No model is loaded. Without --tokenizer, 4 bytes count as a token.",
    )  # fmt: skip
    _program(parser)
    parser.add_argument("--tokenizer", metavar="MODEL", help="count with this model's tokenizer; "
                        "'default' is the default model's")  # fmt: skip
    parser.add_argument("--graph", action="store_true", help="draw the program's graph as well")
    parser.add_argument("--svg", metavar="FILE", help="write the graph as an SVG file")


def add_tree(commands: Commands) -> None:
    """`tree`: the radix tree that a run leaves behind."""
    parser = _parser(
        commands, "tree", "run a program and draw what it left in the cache",
        "Run a program and draw the radix tree of its KV cache: a line a node with its tokens,\n"
        "how often it was hit, and its text; below it what sharing saved.",
    )  # fmt: skip
    _program(parser)
    parser.add_argument("--width", type=int, default=60, metavar="N",
                        help="characters of text a node (60)")  # fmt: skip
    _sampling(parser)
    _runtime(parser)


def add_bench(commands: Commands) -> None:
    """`bench`: three figures of this machine."""
    parser = _parser(
        commands, "bench", "measure this machine: prefill, one stream, a fork",
        "Measure prefill, one decoding stream, and a fork of many branches on a shared prefix.\n"
        "The full comparison with other engines is in benchmarks/ of the source tree.",
    )  # fmt: skip
    parser.add_argument("--shared", type=int, default=512, metavar="N",
                        help="tokens of the shared prefix (512)")  # fmt: skip
    parser.add_argument("--branches", type=int, default=16, metavar="N", help="branches (16)")
    parser.add_argument("--private", type=int, default=16, metavar="N",
                        help="prompt tokens of each branch (16)")  # fmt: skip
    parser.add_argument("--tokens", type=int, default=32, metavar="N",
                        help="generated tokens a branch (32)")  # fmt: skip
    _runtime(parser)


def add_doctor(commands: Commands) -> None:
    """`doctor`: what is there, what is missing, what to do."""
    parser = _parser(
        commands, "doctor", "check versions, device, kernels and model",
        "Check what radixlang needs and say what to do about what is missing.\n"
        "Exits with 1 if something that is needed is not there.",
    )  # fmt: skip
    parser.add_argument("--model", metavar="MODEL", help="check this model, not the default one")
    parser.add_argument("--quick", action="store_true", help="versions and files only; no torch")


def add_prefix(commands: Commands) -> None:
    """`prefix`: prefixes computed once and kept on disk."""
    parser = commands.add_parser(
        "prefix", help="prefixes computed once and kept on disk",
        description="Keep the computed keys and values of prompts that every start needs.",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = _parser(actions, "build", "compute a prefix and save it",
                    "Compute the beginning that all runs of a program share, or a text, and save\n"
                    "it; `radixlang run --prefixes NAME` then starts from it.")  # fmt: skip
    build.add_argument("name", metavar="NAME", help="a name, or a path that ends in .prefix")
    source = build.add_mutually_exclusive_group(required=True)
    source.add_argument("--program", metavar="FILE", help=_PROGRAM_HELP)
    source.add_argument(
        "--text", metavar="TEXT", help="the text itself; @FILE reads it from a file"
    )
    _settings(build)
    _runtime(build)
    _parser(actions, "list", "list saved prefixes", "Saved prefixes, their tokens and size.")
    drop = _parser(actions, "drop", "delete saved prefixes", "Delete saved prefixes.")
    drop.add_argument("names", metavar="NAME", nargs="+")


def _parser(commands: Commands, name: str, help: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    return parser


def _program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=_PROGRAM_HELP)
    _settings(parser)


def _settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings",
        help="an argument of the program: JSON, or else text; NAME=@FILE reads a file",
    )  # fmt: skip


def _sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling, where the program does not say")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same run")
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    group.add_argument("--max-tokens", type=int, metavar="N", help="tokens a generation")
    group.add_argument("--timeout", type=float, metavar="S", help="seconds a run may take")


def _runtime(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model")
    group.add_argument("--model", metavar="MODEL", help="a folder, a GGUF file or a hub name; "
                       "'fake' makes up words, to try a program without a model")  # fmt: skip
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1; a GPU if there is one")
    group.add_argument("--context", type=int, metavar="N", help="tokens of prompt and answer")
