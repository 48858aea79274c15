"""A fingerprint of what made a saved result: the program's source, the model, the run's options.

It covers the program's own function, its bound arguments and the plain values that it closes over,
but not the functions that it calls.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from types import CellType, CodeType
from typing import Any, Protocol

from radixlang.constraints.typed_values import to_json
from radixlang.graph.graph_json import node_to_json
from radixlang.graph.nodes import Graph
from radixlang.json_types import Json
from radixlang.records.json_text import dump_json

_SIMPLE = (str, int, float, bool, type(None), list, tuple, dict, set, frozenset)
_NO_MATTER = ("timeout", "check")  # options that do not change an answer


class Launched(Protocol):
    """A program, or a compiled one, which has a graph in place of a function."""

    @property
    def name(self) -> str: ...


def made_by(program: Launched, model_name: str, options: Mapping[str, object]) -> dict[str, Json]:
    """JSON data that is equal if program, model and options are."""
    kept = {name: value for name, value in options.items()
            if name not in _NO_MATTER and value is not None}  # fmt: skip
    said = {"program": f"{program.name} {_digest(_content(program))}", "model": model_name}
    values = {name: to_json(value) for name, value in kept.items()}
    plain: dict[str, Json] = json.loads(dump_json({**said, **values}))
    return plain


def difference(old: Mapping[str, object], new: Mapping[str, object]) -> str | None:
    """The first difference of two fingerprints, in words; None if they are the same."""
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            if name == "program":
                return f"the program was {old.get(name)}, and is {new.get(name)}"
            return f"{name} was {old.get(name)!r}, and is {new.get(name)!r}"
    return None


def _content(program: Any) -> Json:  # each kind has members of its own
    graph = getattr(program, "graph", None)
    if isinstance(graph, Graph):
        return _graph_content(graph)
    if getattr(program.function, "is_template", False):
        return [_graph_content(program.trace()), to_json(program.bound)]
    return [_source(program.function), _closed_over(program.function), to_json(program.bound)]


def _graph_content(graph: Graph) -> Json:
    nodes = [[node_to_json(node) for node in block.nodes] for block in graph.blocks]
    return [[{**node, "location": ""} for node in block] for block in nodes]


def _source(function: Callable[..., object]) -> Json:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # made by exec, or typed at a prompt
        code = getattr(function, "__code__", None)
        return _code_content(code) if code is not None else repr(function)


def _code_content(code: CodeType) -> Json:
    constants = [_code_content(each) if isinstance(each, CodeType) else repr(each)
                 for each in code.co_consts]  # fmt: skip
    return [code.co_code.hex(), list(code.co_names), constants]


def _closed_over(function: Callable[..., object]) -> Json:
    cells = getattr(function, "__closure__", None) or ()
    code: CodeType | None = getattr(function, "__code__", None)
    names = code.co_freevars if cells and code is not None else ()
    return {name: to_json(cell.cell_contents) for name, cell in zip(names, cells, strict=True)
            if isinstance(_contents(cell), _SIMPLE)}  # fmt: skip


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return _contents


def _digest(data: Json) -> str:
    text = dump_json(data, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]
