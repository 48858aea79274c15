"""Passes over graphs. None changes a value's address, so seeds and results stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from radixlang.graph.nodes import (
    Block,
    Fork,
    Graph,
    Node,
    Part,
    Ref,
    RoleBegin,
    RoleEnd,
    Text,
    copy_block,
    relinked,
)
from radixlang.protocol import Markup


def merge_text(graph: Graph) -> Graph:
    """Merge neighbouring Text nodes, and neighbouring strings inside each."""
    blocks = [copy_block(block) for block in graph.blocks]
    for block in blocks:
        block.nodes = _merged(block.nodes)
        block.flushed = len(block.nodes)
    return relinked(graph.name, blocks)


def _merged(nodes: Sequence[Node]) -> list[Node]:
    merged: list[Node] = []
    for node in nodes:
        last = merged[-1] if merged else None
        if isinstance(node, Text) and isinstance(last, Text):
            merged[-1] = Text(merge_parts(last.parts + node.parts), last.location)
        elif isinstance(node, Text):
            merged.append(Text(merge_parts(node.parts), node.location))
        else:
            merged.append(node)
    return merged


def merge_parts(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Merge neighbouring strings of the same kind (text, or markup)."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, str) and isinstance(last, str) and type(part) is type(last):
            found[-1] = type(part)(last + part)
        else:
            found.append(part)
    return tuple(found)


def constant_prefix(graph: Graph) -> tuple[RoleBegin | RoleEnd | Text, ...]:
    """The longest beginning of the program that no argument and no generation touches.

    The last node may be a Text cut before its first open part.
    """
    found: list[RoleBegin | RoleEnd | Text] = []
    for node in merge_text(graph).root.nodes:
        if isinstance(node, (RoleBegin, RoleEnd)):
            found.append(node)
        elif isinstance(node, Text):
            fixed = _fixed_parts(node.parts)
            if fixed:
                found.append(replace(node, parts=fixed))
            if len(fixed) < len(node.parts):
                break
        else:
            break
    return tuple(found)


def _fixed_parts(parts: Sequence[Part]) -> tuple[Part, ...]:
    for index, part in enumerate(parts):
        if not isinstance(part, str):
            return tuple(parts[:index])
    return tuple(parts)


def hoist_shared_prefix(graph: Graph) -> Graph:
    """Move the text with which all branches of a fork begin into the fork: it is computed once."""
    blocks = [copy_block(block) for block in graph.blocks]
    for block in blocks:
        block.nodes = [
            _hoisted(node, blocks) if isinstance(node, Fork) else node for node in block.nodes
        ]
    for block in blocks:
        block.flushed = len(block.nodes)
    return relinked(graph.name, blocks)


def _hoisted(fork: Fork, blocks: list[Block]) -> Fork:
    children = [blocks[child] for child in fork.children]
    heads = [child.nodes[0] if child.nodes else None for child in children]
    if len(children) < 2 or not all(isinstance(head, Text) for head in heads):
        return fork
    texts = [head.parts for head in heads if isinstance(head, Text)]
    shared = _shared_parts(texts)
    if not shared:
        return fork
    for child, head in zip(children, heads, strict=True):
        assert isinstance(head, Text)
        rest = _without_prefix(head.parts, shared)
        child.nodes[:1] = [replace(head, parts=rest)] if rest else []
    return replace(fork, prefix=merge_parts(fork.prefix + shared))


def _shared_parts(rows: list[tuple[Part, ...]]) -> tuple[Part, ...]:
    """Parts that all rows begin with; the last may be the shared beginning of strings."""
    found: list[Part] = []
    for column in zip(*rows, strict=False):
        first = column[0]
        if any(isinstance(part, Ref) for part in column):
            break
        if all(part == first and type(part) is type(first) for part in column):
            found.append(first)
            continue
        strings = [part for part in column if isinstance(part, str)]
        if len(strings) == len(column) and not any(isinstance(s, Markup) for s in strings):
            shared = _common_text(strings)
            if shared:
                found.append(shared)
        break
    return tuple(found)


def _common_text(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    end = next((i for i, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]),
               min(len(low), len(high)))  # fmt: skip
    return low[:end]


def _without_prefix(parts: tuple[Part, ...], shared: tuple[Part, ...]) -> tuple[Part, ...]:
    last = len(shared) - 1
    part, cut = parts[last], shared[last]
    rest = parts[last + 1 :]
    if isinstance(part, str) and isinstance(cut, str) and len(cut) < len(part):
        return (type(part)(part[len(cut) :]), *rest)
    return rest
