"""Graphs drawn: an indented tree for a terminal, SVG for everything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from radixlang.graph.nodes import (
    Adapt,
    Adopt,
    Answer,
    Arg,
    Block,
    Call,
    Contrasted,
    Dynamic,
    Fork,
    Gen,
    Graph,
    Join,
    Node,
    Option,
    Part,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    ThoughtBegin,
    ThoughtEnd,
)
from radixlang.notebook_cells import cell
from radixlang.protocol import AdapterUse

_WIDTH = 60
_COLORS = {
    "text": "#e8eef7", "role": "#f3e8f7", "gen": "#dff3e0", "select": "#e0f0f3",
    "fork": "#fdf1d8", "join": "#fdf1d8", "call": "#f7e8e8", "dynamic": "#fbdcdc",
    "adapter": "#e8e4f8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One node as it is drawn: nesting depth, kind and label."""

    depth: int
    kind: str
    label: str
    location: str = ""


def rows_of(graph: Graph) -> Iterator[Row]:
    """Every node in drawing order; a branch's nodes are one level deeper than its fork."""
    yield from _block_rows(graph, graph.root, 0)


def _block_rows(graph: Graph, block: Block, depth: int) -> Iterator[Row]:
    for node in block.nodes:
        yield Row(depth, *_describe(node), location=str(node.location or ""))
        if isinstance(node, Fork):
            for index, child in enumerate(node.children):
                yield Row(depth + 1, "fork", f"branch {index}")
                yield from _block_rows(graph, graph.blocks[child], depth + 2)
        elif isinstance(node, Call):
            yield from _block_rows(graph, graph.blocks[node.child], depth + 1)


def _describe(node: Node) -> tuple[str, str]:
    match node:
        case Text():
            return "text", parts_label(node.parts)
        case RoleBegin():
            return "role", f"{node.role}:"
        case RoleEnd():
            return "role", f"end of {node.role}"
        case ThoughtBegin():
            return "role", "thought:"
        case ThoughtEnd():
            return "role", "end of thought"
        case Answer():
            kept = "with its thought" if node.keep else "without its thought"
            return "join", f"answer {node.name or 'unnamed'} {kept}"
        case Gen():
            return "gen", f"gen {node.name or 'unnamed'}{_options(node)}"
        case Contrasted():
            return "gen", f"takes part in {node.name or 'unnamed'} of block {node.block}"
        case Select():
            return "select", f"select {node.name or 'unnamed'} of {_count(node.options)}"
        case Fork():
            shared = f", shared {parts_label(node.prefix)}" if node.prefix else ""
            return "fork", f"fork {len(node.children)}{shared}"
        case Join():
            return "join", f"join {node.name or node.mode} of {len(node.children)}"
        case Adopt():
            return "join", f"go on from branch block {node.child}"
        case Call():
            return "call", f"call {node.program} ({node.scope})"
        case Adapt():
            return "adapter", adapter_label(node.use)
        case Dynamic():
            return "dynamic", f"Python looks at a value: {node.reason}"
    raise TypeError(f"not a node: {node!r}")


def adapter_label(use: AdapterUse | None) -> str:
    """An adapter as a line of a drawing."""
    if use is None:
        return "end of adapter"
    layers = "" if use.layers is None else f", {len(use.layers)} layers"
    return f"adapter {use.name}{'' if use.scale == 1.0 else f' at {use.scale:g}'}{layers}"


def _options(node: Gen) -> str:
    # a thought takes none of the answer's bounds and stops
    shown = [
        f"{name}={value!r}"
        for name, value in node.overrides
        if node.thought is None or value not in ((), 0, False)
    ]
    if node.output is not None:
        shown.insert(0, str(getattr(node.output.kind, "__name__", node.output.kind)))
    elif node.constraint is not None:
        shown.insert(0, type(node.constraint).__name__)
    if node.against is not None:
        against = node.against
        shown.insert(0, f"against block {against.block}, weight={against.how.weight:g}")
    return f" ({', '.join(shown)})" if shown else ""


def _count(options: tuple[Option, ...] | Arg) -> str:
    return f"{{{options.name}}}" if isinstance(options, Arg) else f"{len(options)} options"


def parts_label(parts: tuple[Part, ...], width: int = _WIDTH) -> str:
    """Parts as one line; open values in braces."""
    texts = [part if isinstance(part, str) else f"{{{part.name}}}" for part in parts]
    whole = "".join(texts)
    shown = whole if len(whole) <= width else whole[: width - 1] + "…"
    return repr(shown)


def graph_to_text(graph: Graph) -> str:
    """The graph as an indented tree."""
    lines = [f"program {graph.name}({', '.join(graph.arguments())})"]
    lines += [f"{'  ' * (row.depth + 1)}{row.label}" for row in rows_of(graph)]
    return "\n".join(lines)


def graph_to_svg(graph: Graph) -> str:
    """The graph as a standalone SVG: a row for each node, branches indented and connected."""
    rows = list(rows_of(graph))
    height, indent, row_height = 30 + 26 * len(rows), 22, 26
    width = 120 + max((row.depth * indent + 8 * len(row.label) for row in rows), default=200)
    shapes = [f'<text x="8" y="18" font-weight="bold">{escape(graph.name)}</text>']
    last_at: dict[int, int] = {}
    for index, row in enumerate(rows):
        x, y = 8 + row.depth * indent, 28 + index * row_height
        above = last_at.get(row.depth - 1)
        if row.depth and above is not None:
            shapes.append(
                f'<path d="M{x - indent + 6} {above} V{y + 11} H{x}" stroke="#999" fill="none"/>'
            )
        last_at[row.depth] = y + 22
        shapes.append(
            f'<rect x="{x}" y="{y}" width="{8 * len(row.label) + 14}" height="22" rx="4" '
            f'fill="{_COLORS[row.kind]}" stroke="#999"><title>{escape(row.location)}</title></rect>'
            f'<text x="{x + 7}" y="{y + 15}">{escape(row.label)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="monospace" font-size="13" role="img" '
        f'aria-label="graph of program {escape(graph.name)}">{"".join(shapes)}</svg>'
    )


def graph_to_cell(graph: Graph) -> str:
    """The graph as nested rows, a line for each node."""
    rows = "".join(
        f'<div class="node {row.kind}" style="margin-left:{1.5 * row.depth:g}em" '
        f'title="{escape(row.location)}">{escape(row.label)}</div>'
        for row in rows_of(graph)
    )
    return cell(f"<b>{escape(graph.name)}</b>{rows}")
