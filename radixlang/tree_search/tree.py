"""The tree of a search: each node is a branch of the program, made by one step and valued once.

    tree = SearchTree(s, step, value)
    children = tree.grow([tree.root] * 3)     # three forks, their steps in one batch
    tree.prune(children[0])                   # its KV is free at once
    tree.finish(tree.grow([children[1]])[0])  # s goes on from there

Policies drive it, and so may any other code: it is the tell to somebody else's ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from radixlang.errors import ParameterError, ProgramError, ValueParseError
from radixlang.program.strategies import Step, take_step
from radixlang.state.recording.groups import ForkGroup
from radixlang.state.state import State
from radixlang.tree_search.valuing import BranchError, Value, values_of

Test = Callable[[State], bool]


class SearchNode:
    """A branch of a search.

    Attributes:
        index: its place in the order in which nodes were made; the root is 0.
        depth: number of steps from the root.
        value: what the value function said of it; NaN for the root, -inf for a failed node.
        values: the variables that its step bound. They stay readable after the branch has ended.
        error: why it failed, or None.
        is_complete: no step may follow it.
        is_live: it is in the tree: it has neither failed nor been pruned.
    """

    __slots__ = ("children", "depth", "error", "index", "is_complete", "is_live", "parent",
                 "state", "value", "values")  # fmt: skip

    def __init__(self, index: int, parent: SearchNode | None, state: State) -> None:
        self.index = index
        self.parent = parent
        self.state = state
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: list[SearchNode] = []
        self.value = math.nan
        self.values: dict[str, Any] = {}
        self.error: BranchError | None = None
        self.is_complete = False
        self.is_live = True

    @property
    def path(self) -> tuple[SearchNode, ...]:
        """The nodes from the root to this one."""
        above = () if self.parent is None else self.parent.path
        return (*above, self)

    def subtree(self) -> Iterator[SearchNode]:
        """This node and all below it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.children)

    def __repr__(self) -> str:
        mark = "" if self.is_live else ", ended"
        return f"SearchNode({self.index}, depth={self.depth}, value={self.value:.4g}{mark})"


class SearchTree:
    """A tree of branches below a state, which must not go on until the search has finished.

    Args:
        state: where the search begins.
        expand: the step that makes a node: what to append to a fork of its parent, or a function
            that appends to the branch it is given.
        value: how good a node is, higher is better; it reads the branch it is given. A node of
            value -inf has failed, and so has one whose step or value raises a ProgramError or a
            ValueParseError, or whose value is NaN. Any other exception ends the search.
        depth: most steps of a path; nodes there are complete.
        is_complete: whether no step is to follow a node, asked when it is made.

    Raises:
        ParameterError: depth is below 1.
    """

    def __init__(
        self, state: State, expand: Step, value: Value, *, depth: int | None = None,
        is_complete: Test | None = None,
    ) -> None:  # fmt: skip
        if depth is not None and depth < 1:
            raise ParameterError(f"a search needs a depth of at least 1, got {depth}")
        self._expand = expand
        self._value = value
        self._depth = depth
        self._is_complete = is_complete
        self.root = SearchNode(0, None, state)
        self.nodes: list[SearchNode] = [self.root]

    @property
    def num_made(self) -> int:
        """Nodes made so far, failed and pruned ones too, without the root."""
        return len(self.nodes) - 1

    def grow(self, parents: Sequence[SearchNode]) -> list[SearchNode]:
        """Make a child for each entry of a list (a node may stand there often), all in one batch.

        Children come back in the order of the list, failed ones too.

        Raises:
            ParameterError: a parent is complete or has ended.
        """
        grown: list[SearchNode] = []
        groups: list[ForkGroup] = []
        for parent, entries in groupby(parents, key=lambda node: node):
            if parent.is_complete or not parent.is_live:
                raise ParameterError(f"{parent} is complete or has ended; nothing grows from it")
            group = parent.state.fork(len(list(entries)), on_error="collect")
            groups.append(group)
            grown += [self._add(parent, state) for state in group]
        for node in grown:
            self._take_step(node)
        errors = {state: group.errors.get(index) for group in groups
                  for index, state in enumerate(group)}  # fmt: skip
        for node in grown:
            self._read(node, errors[node.state])
        self._judge([node for node in grown if node.error is None])
        return grown

    def prune(self, node: SearchNode) -> None:
        """End a node and all below it; what only they hold is free at once."""
        if node is self.root:
            raise ParameterError("the root of a search is the program's own state; cancel() it")
        if node.is_live:
            node.state.cancel()
        for each in node.subtree():
            each.is_live = False

    def open_leaves(self) -> list[SearchNode]:
        """Live nodes from which nothing has grown yet and something may, in order of making."""
        return [
            node
            for node in self.nodes
            if node.is_live and not node.is_complete and not node.children
        ]

    def best(self) -> SearchNode | None:
        """The live complete node of the highest value, or any live node if none is complete; of
        equal ones the first made. None if there is none but the root."""
        live = [node for node in self.nodes[1:] if node.is_live]
        found = [node for node in live if node.is_complete] or live
        return max(found, key=lambda node: (node.value, -node.index), default=None)

    def finish(self, node: SearchNode) -> State:
        """End all other branches and continue the search's state where this node ended."""
        if not node.is_live:
            raise ParameterError(f"{node} has ended; the state cannot go on from it")
        path = node.path
        kept = set(path)
        for each in path:
            for child in each.children:
                if child not in kept and child.is_live:
                    self.prune(child)
        for child in node.children:
            if child.is_live:
                self.prune(child)
        for parent, below in reversed(list(pairwise(path))):
            parent.state.adopt_child(below.state)
        return self.root.state

    def close(self) -> None:
        """End every branch; the search's state stays where it began."""
        for child in self.root.children:
            if child.is_live:
                self.prune(child)

    # -- inside -------------------------------------------------------------------------

    def _add(self, parent: SearchNode, state: State) -> SearchNode:
        node = SearchNode(len(self.nodes), parent, state)
        self.nodes.append(node)
        parent.children.append(node)
        return node

    def _take_step(self, node: SearchNode) -> None:
        try:
            take_step(node.state, self._expand)
        except (ProgramError, ValueParseError) as error:
            self._check_program(error)
            self._fail(node, error)

    def _read(self, node: SearchNode, error: ProgramError | None) -> None:
        """Read the variables of a node whose step is done."""
        if error is not None and node.error is None:
            self._check_program(error)
            self._fail(node, error)
        if node.error is not None:
            return
        try:
            node.values = {name: node.state[name] for name in node.state.names(own=True)}
        except (ProgramError, ValueParseError) as failure:
            self._check_program(failure)
            self._fail(node, failure)

    def _judge(self, nodes: list[SearchNode]) -> None:
        """Value nodes, and see which are complete."""
        found = values_of(self._value, [node.state for node in nodes])
        for node, value in zip(nodes, found, strict=True):
            try:
                if isinstance(value, (ProgramError, ValueParseError)):
                    raise value
                node.value = value
                at_end = self._depth is not None and node.depth >= self._depth
                node.is_complete = at_end or bool(
                    self._is_complete and self._is_complete(node.state)
                )
            except (ProgramError, ValueParseError) as failure:
                self._check_program(failure)
                self._fail(node, failure)
                continue
            if math.isnan(node.value) or node.value == -math.inf:
                self._fail(node, None)

    def _check_program(self, error: Exception) -> None:
        """Raise the error if it is the whole program's and not one branch's."""
        if self.root.state.error is not None:
            raise error

    def _fail(self, node: SearchNode, error: BranchError | None) -> None:
        node.error, node.value = error, -math.inf
        self.prune(node)
