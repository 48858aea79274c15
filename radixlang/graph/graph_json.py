"""Graphs as JSON, for tools outside Python and for files that record a program."""

from __future__ import annotations

import dataclasses
import json

from radixlang.constraints.typed_values import type_name
from radixlang.errors import ParameterError
from radixlang.graph.nodes import Arg, Block, Graph, Location, Node, Ref
from radixlang.json_types import Json
from radixlang.protocol import Markup
from radixlang.sampling_params import SamplingParams

VERSION = 1


def graph_to_json(graph: Graph, indent: int | None = None) -> str:
    """The graph as JSON: blocks with their nodes, in execution order."""
    data = {
        "version": VERSION,
        "program": graph.name,
        "arguments": list(graph.arguments()),
        "is_static": graph.is_static,
        "blocks": [_block(block) for block in graph.blocks],
    }
    return json.dumps(data, ensure_ascii=False, indent=indent)


def _block(block: Block) -> dict[str, Json]:
    return {
        "id": block.id,
        "parent": None if block.parent is None else block.parent.id,
        "kind": block.kind,
        "path": list(block.path),
        "nodes": [node_to_json(node) for node in block.nodes],
    }


def node_to_json(node: Node) -> dict[str, Json]:
    """One node: its type, and its fields that are set."""
    fields: dict[str, Json] = {"type": type(node).__name__}
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if value is not None and value != () and field.name != "params":
            fields[field.name] = _value(value)
    return fields


def _value(value: object) -> Json:
    if isinstance(value, Markup):
        return {"markup": str(value)}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, range):
        return list(value)
    if isinstance(value, Location):
        return str(value)
    if isinstance(value, Ref):
        return {"ref": [value.block, value.slot], "name": value.name, "spec": value.spec}
    if isinstance(value, Arg):
        return {"arg": value.name, "spec": value.spec}
    if isinstance(value, SamplingParams):
        return dataclasses.asdict(value)
    if isinstance(value, (tuple, list)):
        return [_value(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: _value(getattr(value, field.name))
                 for field in dataclasses.fields(value)}  # fmt: skip
        return {"kind": type(value).__name__, **parts}
    if callable(value):
        return getattr(value, "__qualname__", type_name(value))
    return str(value)


def check_version(data: object, what: str, version: int) -> None:
    """Raise a ParameterError unless data is an object of this kind and version."""
    if not isinstance(data, dict) or data.get("kind") != what:
        raise ParameterError(f"this is not a radixlang {what} file")
    if data.get("version") != version:
        raise ParameterError(
            f"the {what} file has version {data.get('version')!r}; this radixlang reads {version}"
        )
