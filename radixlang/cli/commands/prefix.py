"""`radixlang prefix build | list | drop`: prefixes computed once and saved on disk."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from radixlang.cache_dir import home
from radixlang.cli._runtime import (
    Opened,
    describe_prefix,
    load_saved_prefix,
    opened_runtime,
    save_token_prefix,
)
from radixlang.cli.programs import load_program, own_errors, read_text, settings
from radixlang.errors import ParameterError
from radixlang.graph.nodes import RoleBegin, RoleEnd, Text
from radixlang.graph.passes import constant_prefix
from radixlang.program.program import Program
from radixlang.state.state import State
from radixlang.units import bytes_text

if TYPE_CHECKING:
    from radixlang.cli._runtime import SavedPrefix


_SUFFIX = ".prefix"


def run(args: argparse.Namespace) -> int:
    """Returns 0; a failure raises an error."""
    action = {"build": _build, "list": _list, "drop": _drop}[args.action]
    lines, data = action(args)
    print(json.dumps(data, ensure_ascii=False) if args.json else "\n".join(lines))
    return 0


def folder() -> Path:
    """The folder of saved prefixes."""
    return home() / "prefixes"


def path_of(name: str) -> Path:
    """The file of a name; a name that ends in .prefix is a path itself.

    Raises:
        ParameterError: the name would lead out of the folder.
    """
    if name.endswith(_SUFFIX):
        return Path(name)
    if not name or Path(name).name != name:
        raise ParameterError(f"{name!r} is no name for a prefix; a path must end in {_SUFFIX}")
    return folder() / (name + _SUFFIX)


def load(runtime: Opened, name: str) -> None:
    """Load and pin a saved prefix.

    Raises:
        ParameterError: there is none of this name, or it belongs to another model.
    """
    path = _existing(name)
    load_saved_prefix(runtime, path)


def _existing(name: str) -> Path:
    path = path_of(name)
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder().glob("*" + _SUFFIX))) or "none"
        raise ParameterError(f"no saved prefix {name!r} ({path}); saved here: {known}")
    return path


def _build(args: argparse.Namespace) -> tuple[list[str], dict[str, object]]:
    path = path_of(args.name)
    if args.model == "fake":
        raise ParameterError("a prefix holds keys and values of a model; the fake one has none")
    program = _prefix_program(args)
    with opened_runtime(args) as runtime:
        token_ids = program.run(runtime=runtime).result
        found = save_token_prefix(runtime, token_ids, path)
    line = f"{args.name}: {found.num_tokens:,} tokens, {bytes_text(found.num_bytes)}, in {path}"
    return [line], _data(found)


def _prefix_program(args: argparse.Namespace) -> Program:
    """A program that appends the text with which all runs begin, and returns its tokens."""
    if args.text is not None:
        text = read_text(args.text[1:]) if args.text.startswith("@") else args.text
        return Program(lambda s: _say(s, [Text((text,))]), "prefix")
    program = load_program(args.program)
    with own_errors():
        nodes = constant_prefix(program.trace(**settings(args.settings, program)))
    if not nodes:
        raise ParameterError(
            f"program {program.name!r} begins with an argument or a generation: nothing is the "
            "same in all runs. Set the arguments that are with --set"
        )
    return Program(lambda s: _say(s, nodes), "prefix")


def _say(s: State, nodes: Sequence[Text | RoleBegin | RoleEnd]) -> tuple[int, ...]:
    for node in nodes:
        if isinstance(node, RoleBegin):
            s.role_begin(node.role)
        elif isinstance(node, RoleEnd):
            s.role_end(node.role)
        else:
            for part in node.parts:
                assert isinstance(part, str)  # no other part is constant
                s += part
    return s.tokens()


def _list(args: argparse.Namespace) -> tuple[list[str], list[dict[str, object]]]:
    paths = sorted(folder().glob("*" + _SUFFIX))
    if not paths:
        return [f"no saved prefixes in {folder()}"], []
    width = max(len(path.stem) for path in paths)
    rows = [_listed(path, width) for path in paths]
    return [line for line, _ in rows], [data for _, data in rows]


def _listed(path: Path, width: int) -> tuple[str, dict[str, object]]:
    """A line of the list; for a prefix that cannot be read it has the reason."""
    try:
        found = describe_prefix(path)
    except (ParameterError, OSError) as error:
        data: dict[str, object] = {"name": path.stem, "path": str(path), "error": str(error)}
        return f"{path.stem:<{width}}  cannot be read: {error}", data
    size = bytes_text(found.num_bytes)
    return f"{path.stem:<{width}}  {found.num_tokens:>8,} tokens  {size:>9}", _data(found)


def _data(found: SavedPrefix) -> dict[str, object]:
    return {"name": found.path.stem, "path": str(found.path), "num_tokens": found.num_tokens,
            "num_bytes": found.num_bytes, "fingerprint": found.fingerprint}  # fmt: skip


def _drop(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    paths = [_existing(name) for name in args.names]  # check all before any is removed
    for path in paths:
        path.unlink()
    return [f"dropped {path.stem}" for path in paths], [path.stem for path in paths]
