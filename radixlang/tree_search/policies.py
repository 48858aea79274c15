"""Which nodes of a search grow next, and which are pruned: best first, and beams.

A policy is what the user writes; `start` gives the searcher that one search asks and tells. Equal
values are ordered by age: the node made first comes first. A policy draws from its seed alone, so
the same program, policy and seed make the same tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from radixlang.errors import ParameterError
from radixlang.tree_search.tree import SearchNode, SearchTree


class Searcher(Protocol):
    """One search's side of a policy."""

    def ask(self, room: int) -> list[SearchNode]:
        """The nodes to grow from now, at most `room` entries; a node stands there once for each
        child it is to get. Empty: the search is over."""
        ...

    def tell(self, grown: list[SearchNode]) -> None:
        """Take the children that were asked for, in that order, failed ones too; may prune."""
        ...

    def best(self) -> SearchNode | None:
        """The node from which the program goes on; None if no node is left."""
        ...


class Policy(Protocol):
    """How a search chooses."""

    def start(self, tree: SearchTree, seed: int) -> Searcher:
        """A searcher for one tree."""
        ...


def at_least_one(**values: int | None) -> None:
    """Raise a ParameterError unless every given number is at least 1."""
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or value < 1):
            raise ParameterError(f"{name} must be at least 1, got {value!r}")


def by_value(node: SearchNode) -> tuple[float, int]:
    """A key that puts the highest value first, and of equal ones the oldest."""
    return -node.value, node.index


@dataclass(frozen=True, slots=True)
class BestFirst:
    """Grow the open node of the highest value, wherever in the tree it is.

    Args:
        branching: children of a node.
        parallel: nodes that grow in one round.
        max_open: open nodes that are kept; the worst beyond them are pruned. None keeps all.
    """

    branching: int = 4
    parallel: int = 1
    max_open: int | None = None

    def __post_init__(self) -> None:
        at_least_one(branching=self.branching, parallel=self.parallel, max_open=self.max_open)

    def start(self, tree: SearchTree, seed: int) -> Searcher:
        """A searcher for one tree; nothing is drawn."""
        return _BestFirstSearcher(self, tree)


class _BestFirstSearcher:
    def __init__(self, policy: BestFirst, tree: SearchTree) -> None:
        self._policy = policy
        self._tree = tree

    def ask(self, room: int) -> list[SearchNode]:
        ranked = sorted(self._tree.open_leaves(), key=by_value)
        wanted = [node for node in ranked[: self._policy.parallel]
                  for _ in range(self._policy.branching)]  # fmt: skip
        return wanted[:room]

    def tell(self, grown: list[SearchNode]) -> None:
        if self._policy.max_open is not None:
            for node in sorted(self._tree.open_leaves(), key=by_value)[self._policy.max_open :]:
                self._tree.prune(node)

    def best(self) -> SearchNode | None:
        return self._tree.best()


@dataclass(frozen=True, slots=True)
class Beam:
    """Grow all nodes of a level and keep the best `width` of the next; the others are pruned.

    Complete nodes keep their place in the beam. Without a depth or a test of completeness the
    search goes on until its budget is spent.

    Args:
        width: nodes of a level that are kept.
        branching: children of each.
    """

    width: int = 4
    branching: int = 4

    def __post_init__(self) -> None:
        at_least_one(width=self.width, branching=self.branching)

    def start(self, tree: SearchTree, seed: int) -> Searcher:
        """A searcher for one tree; nothing is drawn."""
        return _BeamSearcher(self, tree)


class _BeamSearcher:
    def __init__(self, policy: Beam, tree: SearchTree) -> None:
        self._policy = policy
        self._tree = tree
        self._beam = [tree.root]

    def ask(self, room: int) -> list[SearchNode]:
        growing = [node for node in self._beam if not node.is_complete]
        wanted = [node for node in growing for _ in range(self._policy.branching)]
        return wanted[:room]

    def tell(self, grown: list[SearchNode]) -> None:
        complete = [node for node in self._beam if node.is_complete]
        candidates = [node for node in grown if node.is_live] + complete
        ranked = sorted(candidates, key=by_value)
        self._beam, dropped = ranked[: self._policy.width], ranked[self._policy.width :]
        for node in dropped:
            self._tree.prune(node)
        kept = {node for each in self._beam for node in each.path}
        barren = {each.parent for each in grown} - kept - {self._tree.root}
        for parent in barren:
            if parent is not None:
                self._tree.prune(parent)

    def best(self) -> SearchNode | None:
        live = [node for node in self._beam if node.parent is not None]
        return min(live, key=by_value, default=None)
