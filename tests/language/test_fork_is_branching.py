"""A fork node of the graph is a branching of the radix tree: the two have the same edges."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

from radixlang import function, gen
from radixlang.graph.nodes import Block, Fork, Graph
from radixlang.runtime.cache.snapshot import NodeView, take_snapshot
from radixlang.state.state import State

Tokens = tuple[int, ...]


@function
def nested(s: State) -> dict[tuple[int, ...], Tokens]:
    """Forks in forks; returns the tokens of every branch by its path of fork indices."""
    ends = {}
    s += "The theatre in the north of the town plays every night."
    with s.fork(3) as outer:
        for i, branch in enumerate(outer):
            branch += f"{i} is a number of the morning." + gen("a", max_tokens=3, ignore_eos=True)
            with branch.fork(2) as inner:
                for j, leaf in enumerate(inner):
                    leaf += "xy"[j] + ": a question" + gen("b", max_tokens=3, ignore_eos=True)
                    ends[i, j] = leaf.tokens()
            ends[(i,)] = branch.tokens()
    return ends


def branchings_of(tree: Any) -> dict[Tokens, int]:
    """Path of tokens to every node with more than one child → number of its children."""
    found: dict[Tokens, int] = {}
    stack: list[tuple[Tokens, NodeView]] = [
        ((), view) for _, children in take_snapshot(tree).roots for view in children
    ]
    while stack:
        path, view = stack.pop()
        path = (*path, *view.tokens)
        if len(view.children) > 1:
            found[path] = len(view.children)
        stack += [(path, child) for child in view.children]
    return found


def forks_of(graph: Graph, ends: dict[tuple[int, ...], Tokens]) -> dict[Tokens, int]:
    """What the branches of every fork of the graph have in common → number of its branches."""
    found = {}
    for block in graph.blocks:
        for node in block.nodes:
            if isinstance(node, Fork):
                paths = [path_of(graph.blocks[child]) for child in node.children]
                columns = zip(*(ends[path] for path in paths), strict=False)
                shared = takewhile(lambda column: len(set(column)) == 1, columns)
                found[tuple(column[0] for column in shared)] = len(paths)
    return found


def path_of(block: Block) -> tuple[int, ...]:
    return () if block.parent is None else (*path_of(block.parent), block.index)


def test_forks_of_the_graph_are_the_branchings_of_the_tree(
    make_runtime: Callable[..., Any],
) -> None:
    runtime = make_runtime()
    state = nested(runtime=runtime, seed=1)
    branchings = runtime.core.call(lambda: branchings_of(runtime.core.memory.tree))
    assert forks_of(state.graph, state.result) == branchings
    assert sorted(branchings.values()) == [2, 2, 2, 3]
    assert runtime.audit() == []
