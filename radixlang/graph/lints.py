"""Lints: places of a program that run, but probably do not do what was meant.

RL001  text ends in a blank right before a generation
RL002  a stop string that the generation's constraint can never produce
RL003  a generation or selection without a name: its value cannot be read
RL004  an argument stands before constant text: the constant part cannot be shared by calls
RL005  branches of a fork in which nothing is generated, or which are never read
RL006  a name bound twice on one branch: the first value can no longer be read
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from radixlang.graph.nodes import (
    Adopt,
    Answer,
    Arg,
    Block,
    Contrasted,
    Fork,
    Gen,
    Graph,
    Join,
    Location,
    Ref,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    node_parts,
)
from radixlang.graph.passes import merge_text

_MIN_CONSTANT = 64  # characters of constant text worth sharing


@dataclass(frozen=True, slots=True)
class Lint:
    """One doubtful place."""

    code: str
    message: str
    location: Location | None

    def __str__(self) -> str:
        return f"{self.location or '<unknown>'}: {self.code} {self.message}"


def lint(graph: Graph, program: object = None) -> list[Lint]:
    """All lints of a graph, in the order of the program."""
    merged = merge_text(graph)
    found: list[Lint] = []
    for block in merged.blocks:
        found += _trailing_blanks(block)
        found += _impossible_stops(block)
        found += _unnamed(block)
        found += _rebound(block)
    found += _late_constants(merged.root)
    found += _unused_forks(merged)
    return sorted(found, key=lambda item: (item.location.line if item.location else 0, item.code))


def _trailing_blanks(block: Block) -> Iterator[Lint]:
    for before, node in zip(block.nodes, block.nodes[1:], strict=False):
        if not isinstance(node, Gen) or not isinstance(before, Text):
            continue
        last = before.parts[-1]
        heals = node.params.heal
        if isinstance(last, str) and last.endswith((" ", "\t")) and not heals:
            yield Lint(
                "RL001",
                f"the text before {_name(node)} ends in a blank and healing is off: most models "
                "put the blank into the next word's token, so end the text without it",
                node.location,
            )


def _impossible_stops(block: Block) -> Iterator[Lint]:
    from radixlang.constraints.specs import Choices, Regex

    for node in block.nodes:
        if not isinstance(node, Gen) or node.constraint is None:
            continue
        for stop in node.params.stop:
            if isinstance(node.constraint, Choices):
                possible = any(stop in option for option in node.constraint.options)
            elif isinstance(node.constraint, Regex):
                possible = _may_contain(node.constraint.pattern, stop)
            else:
                possible = True
            if not possible:
                yield Lint(
                    "RL002",
                    f"{_name(node)} stops at {stop!r}, which its constraint never produces; "
                    "drop the stop",
                    node.location,
                )


def _may_contain(pattern: str, stop: str) -> bool:
    """Whether a text of the pattern may contain a character of the stop; True if in doubt."""
    if re.search(r"\.|\\[DSW]|\[\^", pattern):
        return True
    classes = re.findall(r"\[(?:\\.|[^\]])*\]|\\[dsw]", pattern)
    literals = re.sub(r"\[(?:\\.|[^\]])*\]|\\[dsw]|[?*+(){}|^$]", "", pattern)
    return all(
        char in literals or any(re.fullmatch(part, char) is not None for part in classes)
        for char in stop
    )


def _unnamed(block: Block) -> Iterator[Lint]:
    for node in block.nodes:
        is_thought = isinstance(node, Gen) and node.thought is not None
        if isinstance(node, (Gen, Select)) and node.name is None and not is_thought:
            kind = "gen" if isinstance(node, Gen) else "select"
            yield Lint("RL003", f"this {kind} has no name: its value cannot be read", node.location)


def _rebound(block: Block) -> Iterator[Lint]:
    seen: set[str] = set()
    for node in block.nodes:
        if isinstance(node, (Gen, Select)) and node.name is not None:
            if node.name in seen:
                yield Lint(
                    "RL006",
                    f"{node.name!r} is bound a second time on this branch; the first value can "
                    "no longer be read",
                    node.location,
                )
            seen.add(node.name)


def _late_constants(root: Block) -> Iterator[Lint]:
    """Constant text after the first argument, before anything is generated."""
    argument: Arg | None = None
    constant = 0
    location = None
    for node in root.nodes:
        if not isinstance(node, (Text, RoleBegin, RoleEnd)):
            break
        for part in node_parts(node):
            if isinstance(part, Arg) and argument is None:
                argument, location = part, node.location
            elif isinstance(part, str) and argument is not None:
                constant += len(part)
    if argument is not None and constant >= _MIN_CONSTANT:
        yield Lint(
            "RL004",
            f"argument {argument.name!r} stands before {constant} characters of constant text, "
            "which calls with other arguments then cannot share; move it behind them",
            location,
        )


def _unused_forks(graph: Graph) -> Iterator[Lint]:
    if not graph.is_static:
        return
    read = _blocks_read(graph)
    for _, node in graph.walk():
        if not isinstance(node, Fork):
            continue
        makes = any(_generates(graph, child) for child in node.children)
        if not makes:
            yield Lint("RL005", "no branch of this fork generates anything", node.location)
        elif not read & set(node.children):
            yield Lint("RL005", "no branch of this fork is joined or read", node.location)


def _generates(graph: Graph, block: int) -> bool:
    return any(
        isinstance(node, (Gen, Contrasted, Select, Fork)) for node in graph.blocks[block].nodes
    )


def _blocks_read(graph: Graph) -> set[int]:
    read: set[int] = set()
    for _, node in graph.walk():
        if isinstance(node, Join):
            read |= set(node.children)
        elif isinstance(node, (Adopt, Answer)):
            read.add(node.child)
        elif isinstance(node, Gen) and node.against is not None:
            read.add(node.against.block)
        for part in node_parts(node):
            if isinstance(part, Ref):
                read.add(part.block)
    return read


def _name(node: Gen) -> str:
    return f"gen {node.name!r}" if node.name else "a gen"
