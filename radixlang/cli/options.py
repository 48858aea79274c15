"""The arguments of every command, declared in one place. It imports nothing heavy."""

from __future__ import annotations

import argparse
from typing import Any, TypeAlias

# argparse has public names for neither
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Group: TypeAlias = "argparse._ActionsContainer"
_PROGRAM_HELP = (
    "a .radix template, or a Python file with a @radixlang.function; FILE:NAME picks one of several"
)


def flag_of(name: str) -> str:
    """The option that sets an attribute of the parsed arguments."""
    return "--set" if name == "settings" else "--" + name.replace("_", "-")


def add_run(commands: Commands) -> None:
    """`run`: one run, or one for every row of a file."""
    parser = _parser(
        commands, "run", "run a program, once or for every row of a file",
        "Run a program and print its variables. With --rows it runs once for every row; rows that\n"
        "--out already holds are not run again: an interrupted batch continues where it stopped.",
    )  # fmt: skip
    _program(parser)
    rows = parser.add_argument_group("many rows")
    _take(rows, "--rows", "FILE", "a .jsonl, .json, .csv, .tsv or .parquet file, or a folder of "
          "datasets; each row has the arguments; - reads JSON lines from stdin")  # fmt: skip
    _take(rows, "--out", "FILE", "append each result here as a JSON line when its row finishes")
    shown = parser.add_argument_group("what is shown")
    _flag(shown, "--text", "print the whole prompt and its answers")
    _flag(shown, "--tree", "print the tree of the run")
    _take(shown, "--html", "FILE", "write the view of the run as one HTML file, even if it failed; "
          "with --rows one file for each row, FILE-0.html, FILE-1.html, …")  # fmt: skip
    _take(shown, "--live", "FILE", "the same, rewritten every second while the run goes on")
    _flag(shown, "--stats", "print what sharing saved, to stderr")
    _sampling(parser)
    runtime = _runtime(parser)
    _take(runtime, "--prefixes", "NAME", "load a prefix that `radixlang prefix build` saved; "
          "may be given several times", action="append", default=[])  # fmt: skip


def add_chat(commands: Commands) -> None:
    """`chat`: a conversation."""
    parser = _parser(
        commands, "chat", "talk to a model; answers are shown as they are generated",
        "Talk to a model. A line is a turn; /help lists the commands: /tree, /save FILE, /quit.\n"
        "Ctrl-C stops an answer and keeps its text so far. With --json an answer is one line of\n"
        "JSON.",
    )  # fmt: skip
    _take(parser, "--system", "TEXT", "a system turn before the first; @FILE reads it from a file")
    _sampling(parser)
    _runtime(parser)


def add_serve(commands: Commands) -> None:
    """`serve`: a model behind OpenAI's API, and programs that run on it."""
    parser = _parser(
        commands, "serve", "serve a model over HTTP, as OpenAI's API does, and programs",
        "Serve /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics until\n"
        "Ctrl-C; running requests may then end. With a FILE, its programs are served as well:\n"
        "POST /programs/NAME takes the arguments as JSON, and /openapi.json describes them.\n"
        "With --json the address is one line of JSON.",
    )  # fmt: skip
    parser.add_argument("target", metavar="MODEL or FILE", nargs="?", help="what --model takes; or "
                        "a .py or .radix file of programs, FILE:NAME for one of them")  # fmt: skip
    address = parser.add_argument_group("who may ask")
    _take(address, "--host", "ADDRESS", "address to listen on (127.0.0.1: this machine only)",
          default="127.0.0.1")  # fmt: skip
    _take(address, "--port", "N", "0 takes a free one (8000)", type=int, default=8000)
    _take(address, "--api-key", "KEY", "a key that clients must send; may be given several times",
          action="append", default=[])  # fmt: skip
    _take(address, "--api-key-file", "FILE", "a file with one key a line, which `ps` does not show")
    _take(address, "--served-name", "NAME", "the model's name in requests and replies")
    limits = parser.add_argument_group("limits")
    for flag, metavar, meaning, kind in (
        ("--max-body-bytes", "N", "largest body of a request", int),
        ("--max-request-tokens", "N", "most tokens that a request may generate", int),
        ("--max-requests", "N", "requests at the same time", int),
        ("--max-requests-per-key", "N", "of the clients of one key", int),
        ("--max-stored", "N", "stored choices that parent_id may name", int),
        ("--max-stored-tokens", "N", "tokens of these, prompts included", int),
        ("--stored", "S", "seconds without use after which one is dropped", float),
        ("--request-timeout", "S", "most seconds of a request", float),
        ("--shutdown", "S", "seconds that running requests have at the end", float),
        ("--idle-exit", "S", "stop after so many seconds without a request", float),
    ):
        _take(limits, flag, metavar, meaning, type=kind)
    _sampling(parser)
    _runtime(parser)


def add_lint(commands: Commands) -> None:
    """`lint`: doubtful places of programs."""
    parser = _parser(
        commands, "lint", "find doubtful places of programs, without a model",
        "Trace the programs of a file and print what was probably not meant: one line for each\n"
        "place, with a code (RL001 …). Exits with 1 if there is any.",
    )  # fmt: skip
    _program(parser)


def add_explain(commands: Commands) -> None:
    """`explain`: predictions without a model."""
    parser = _parser(
        commands, "explain", "predict tokens, sharing and memory, without a model",
        "Trace a program and predict a run: tokens by edge, shared and computed tokens, peak KV.\n"
        "No model is loaded. Without --tokenizer, 4 bytes count as a token.",
    )  # fmt: skip
    _program(parser)
    _take(parser, "--tokenizer", "MODEL", "count with this model's tokenizer; 'default' is the "
          "default model's")  # fmt: skip
    _flag(parser, "--graph", "draw the program's graph as well")
    _take(parser, "--svg", "FILE", "write the graph as an SVG file")


def add_tree(commands: Commands) -> None:
    """`tree`: the radix tree that a run left behind."""
    parser = _parser(
        commands, "tree", "draw what a run left in the cache",
        "Draw the radix tree of the KV cache as a run left it: for each node its tokens, how\n"
        "often it was hit, and its text; below it what sharing saved. Without FILE it shows the\n"
        "last `radixlang run`, with FILE it runs the program now.",
    )  # fmt: skip
    _program(parser, nargs="?")
    _take(parser, "--width", "N", "characters of text shown for a node (60)", type=int)
    _sampling(parser)
    _runtime(parser)


def add_bench(commands: Commands) -> None:
    """`bench`: three figures of this machine."""
    parser = _parser(
        commands, "bench", "measure this machine: prefill, one stream, a fork",
        "Measure prefill, one decoding stream, and a fork of many branches on a shared prefix.\n"
        "The full comparison with other engines is in benchmarks/ of the source tree.",
    )  # fmt: skip
    for name, number, meaning in (
        ("--shared", 512, "tokens of the shared prefix"),
        ("--branches", 16, "branches"),
        ("--private", 16, "prompt tokens of each branch"),
        ("--tokens", 32, "generated tokens of each branch"),
    ):
        _take(parser, name, "N", f"{meaning} ({number})", type=int, default=number)
    _runtime(parser)


def add_doctor(commands: Commands) -> None:
    """`doctor`: what is installed, what is missing, what to do."""
    parser = _parser(
        commands, "doctor", "check versions, device, kernels and model",
        "Check what radixlang needs and say what to do about what is missing.\n"
        "With --gpu: attention, sampling, bandwidth, a graph and a decode, beside the CPU.\n"
        "Exits with 1 if something needed is missing, or a check fails.",
    )  # fmt: skip
    _take(parser, "--model", "MODEL", "check this model, not the default one")
    how = parser.add_mutually_exclusive_group()
    _flag(how, "--quick", "versions and files only; no torch")
    _take(how, "--gpu", "NAME", "check a GPU (cuda:1; without NAME the current one), a minute or "
          "two; with --json a report to send", nargs="?", const="cuda")  # fmt: skip


def add_prefix(commands: Commands) -> None:
    """`prefix`: prefixes computed once and saved on disk."""
    parser = commands.add_parser(
        "prefix", help="prefixes computed once and saved on disk",
        description="Save the computed keys and values of prompts that every start needs.",
    )  # fmt: skip
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = _parser(actions, "build", "compute a prefix and save it",
                    "Compute the beginning that all runs of a program share, or a given text, and\n"
                    "save it; `radixlang run --prefixes NAME` then starts from it.")  # fmt: skip
    build.add_argument("name", metavar="NAME", help="a name, or a path that ends in .prefix")
    source = build.add_mutually_exclusive_group(required=True)
    _take(source, "--program", "FILE", _PROGRAM_HELP)
    _take(source, "--text", "TEXT", "the text itself; @FILE reads it from a file")
    _settings(build)
    _runtime(build)
    _parser(actions, "list", "list saved prefixes", "Saved prefixes, their tokens and size.")
    drop = _parser(actions, "drop", "delete saved prefixes", "Delete saved prefixes.")
    drop.add_argument("names", metavar="NAME", nargs="+", help="a name from `list`")


# ---- what several commands take


def _parser(commands: Commands, name: str, help: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    _flag(parser, "--json", "print JSON, for scripts")
    return parser


# further options here and below are those of argparse's add_argument


def _program(parser: argparse.ArgumentParser, **options: Any) -> None:
    parser.add_argument("file", metavar="FILE", help=_PROGRAM_HELP, **options)
    _settings(parser)


def _settings(parser: argparse.ArgumentParser) -> None:
    _take(parser, "--set", "NAME=VALUE", "an argument of the program: JSON, or else text; "
          "NAME=@FILE reads a file", action="append", default=[], dest="settings")  # fmt: skip


def _sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling, unless the program sets it")
    _take(group, "--seed", "N", "the same seed gives the same run", type=int)
    _take(group, "--temperature", "T", "0 is greedy", type=float)
    _take(group, "--max-tokens", "N", "tokens a generation", type=int)
    _take(group, "--timeout", "S", "most seconds of a run", type=float)


def _runtime(parser: argparse.ArgumentParser) -> Group:
    group = parser.add_argument_group("the model")
    _take(group, "--model", "MODEL", "a folder, a GGUF file or a hub name; 'fake' makes up words, "
          "to try a program without a model")  # fmt: skip
    _take(group, "--device", "NAME", "cpu, cuda, cuda:1; a GPU if there is one")
    _flag(group, "--no-cuda-graphs", "on a GPU, run every step eagerly")
    _flag(group, "--no-warm-up", "on a GPU, compile kernels when they are first needed")
    _take(group, "--context", "N", "most tokens of prompt and answer together", type=int)
    _take(group, "--chat-template", "FILE", "a Jinja file in place of the model's own template")
    return group


def _take(group: Group, flag: str, metavar: str, help: str, **options: Any) -> None:
    """An option with a value."""
    group.add_argument(flag, metavar=metavar, help=help, **options)


def _flag(group: Group, flag: str, help: str) -> None:
    """An option without one."""
    group.add_argument(flag, action="store_true", help=help)
