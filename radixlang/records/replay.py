"""Replay files: the prompts and answers of a run, to run it again and find the difference."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from radixlang.constraints.typed_values import to_json
from radixlang.errors import ParameterError
from radixlang.execution.branch_run import Stream
from radixlang.execution.pieces import Cell, piece_text
from radixlang.execution.run import Run
from radixlang.graph.graph_json import check_version, node_to_json
from radixlang.graph.nodes import Gen, Select
from radixlang.records.file_fields import Fields, check_fields, check_namespace
from radixlang.records.json_text import dump_json
from radixlang.records.typed_json import restored, types_of
from radixlang.state.state import State

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from radixlang.keywords import RunKeywords

_KIND, _VERSION = "replay", 2
_NODE = {"node": str, "location": str, "asks": str, "prompt": str}
_FIELDS = {"program": str, "model": str, "seed": int, "options": dict, "arguments": dict,
           "types": (dict, type(None)), "nodes": [_NODE]}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """The first node at which a replay differs."""

    node: str
    location: str
    what: str
    recorded: object
    now: object

    def __str__(self) -> str:
        return (
            f"node {self.node} ({self.location}) differs in {self.what}: "
            f"recorded {self.recorded!r}, now {self.now!r}"
        )


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay's state, and the first difference (None: there is none)."""

    state: State
    difference: Difference | None


class Runnable(Protocol):
    """A program, as a replay needs it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def run(self) -> Any:  # its signature is each program's own
        """Run to the end and return the finished state."""
        ...


def save_replay(state: State, path: str | os.PathLike[str]) -> None:
    """Write a finished run: program, arguments, seed, and every node's prompt and outcome."""
    run = state._run()
    arguments, defaults = dict(run.args), dict(run.options.defaults)
    data = {
        "kind": _KIND,
        "version": _VERSION,
        "program": run.name,
        "model": run.backend.model_name,
        "seed": run.seed,
        "namespace": run.options.namespace,
        "options": to_json(_without_functions(defaults)),
        "arguments": to_json(arguments),
        "types": types_of(arguments),
        "nodes": _nodes(run),
    }
    Path(path).write_text(dump_json(data, indent=1) + "\n", encoding="utf-8")


def verify_replay(
    program: Runnable, path: str | os.PathLike[str], **options: Unpack[RunKeywords]
) -> Replayed:
    """Run a program again with a file's arguments and seed, and compare node by node.

    Args:
        options: as for `run`, `runtime` in particular.

    Raises:
        ParameterError: the file is not a replay, or is one of another program.
    """
    recorded = _load(path)
    if recorded["program"] != program.name:
        raise ParameterError(
            f"{os.fspath(path)} is a run of {recorded['program']!r}, not of {program.name!r}"
        )
    namespace = check_namespace(recorded.get("namespace"), options.pop("namespace", None), _KIND)
    arguments = restored(recorded["arguments"], recorded.get("types") or {})
    given = {**recorded["options"], **arguments, **options}
    if isinstance(given.get("logits"), str):
        raise ParameterError(
            f"this run was made with logits={given['logits']}, a function, which a file cannot "
            "hold; give it again, as in verify_replay(program, path, logits=…)"
        )
    state = program.run(seed=recorded["seed"], namespace=namespace, **given)
    return Replayed(state, first_difference(recorded["nodes"], _nodes(state._run())))


def _without_functions(options: Mapping[str, object]) -> dict[str, object]:
    """The options with the name of a function in its place."""
    function = options.get("logits")
    if function is None:
        return dict(options)
    return {**options, "logits": getattr(function, "__qualname__", type(function).__name__)}


def first_difference(recorded: Sequence[Fields], now: Sequence[Fields]) -> Difference | None:
    """The first difference of two lists of nodes; None if they are the same."""
    for old, new in zip(recorded, now, strict=False):
        for what in ("node", "asks", "prompt", "seed", "outcome"):
            if old.get(what) != new[what]:
                return Difference(old["node"], new["location"], what, old.get(what), new[what])
    if len(recorded) != len(now):
        longer = max(recorded, now, key=len)
        extra = longer[min(len(recorded), len(now))]
        return Difference(
            extra["node"], extra["location"], "number of nodes", len(recorded), len(now)
        )
    return None


def _load(path: str | os.PathLike[str]) -> Fields:
    try:
        data: Fields = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"{os.fspath(path)} is not JSON: {error}") from error
    check_version(data, _KIND, _VERSION)
    check_fields(data, _FIELDS, _KIND)
    return data


def _nodes(run: Run) -> list[Fields]:
    """Every generation and selection of a run, in the order of its blocks."""
    found: list[Fields] = []
    for stream in run.iter_streams():
        for node in stream.block.nodes:
            if not isinstance(node, (Gen, Select)):
                continue
            cell = run.loop.cell(stream.block.id, node.slot)
            found.append({
                "node": f"{stream.block.address or 'root'}#{node.slot}",
                "location": _short(str(node.location or "")),
                "asks": _asks(node),
                "prompt": _prompt_hash(run, stream, node, cell),
                "seed": cell.seed,
                "outcome": _outcome(cell),
            })  # fmt: skip
    return found


def _short(location: str) -> str:
    return os.path.basename(location)


def _asks(node: Gen | Select) -> str:
    fields = node_to_json(node)
    fields.pop("location", None)
    return json.dumps(fields, sort_keys=True, ensure_ascii=False)


def _prompt_hash(run: Run, stream: Stream, node: Gen | Select, cell: Cell) -> str:
    """A hash of the prompt; of a contrast, of both prompts."""
    digest = hashlib.sha256()
    _add_prompt(digest, stream, cell)
    against = node.against if isinstance(node, Gen) else None
    if against is not None and against.block in run.streams:
        digest.update(b"\xff")  # in no text
        _add_prompt(digest, run.streams[against.block], cell)
    return digest.hexdigest()[:16]


def _add_prompt(digest: hashlib._Hash, stream: Stream, cell: Cell) -> None:
    for piece in stream.history():
        if piece is cell:
            break
        digest.update(piece_text(piece).encode("utf-8", "surrogatepass"))


def _outcome(cell: Cell) -> object:
    if cell.completion is not None:
        return {"text": cell.completion.text, "tokens": list(cell.completion.token_ids)}
    if cell.choice is not None:
        return {"text": cell.choice.text}
    return None
