"""Monte Carlo tree search by upper confidence bounds (UCT; Kocsis and Szepesvári 2006)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from radixlang.tree_search.policies import Searcher, at_least_one
from radixlang.tree_search.tree import SearchNode, SearchTree


@dataclass(frozen=True, slots=True)
class MCTS:
    """Grow where the mean value of the nodes below, and a bonus for few visits, are highest.

    From the root the search descends to the child of the highest mean + exploration · √(ln visits
    of the node ÷ visits of the child), until a node has fewer than `branching` children and gets
    one more; its value counts for every node above it. Values are best between 0 and 1.

    Args:
        branching: most children of a node.
        exploration: weight of the bonus.
        parallel: nodes that grow in one round. A node asked for counts as a visit of value 0 until
            its value is known, which spreads a round over the tree.
    """

    branching: int = 4
    exploration: float = math.sqrt(2)
    parallel: int = 1

    def __post_init__(self) -> None:
        at_least_one(branching=self.branching, parallel=self.parallel)

    def start(self, tree: SearchTree, seed: int) -> Searcher:
        """A searcher for one tree; nothing is drawn."""
        return _TreeSearcher(self, tree)


class _TreeSearcher:
    def __init__(self, policy: MCTS, tree: SearchTree) -> None:
        self._policy = policy
        self._tree = tree
        self._visits: Counter[SearchNode] = Counter()
        self._totals: Counter[SearchNode] = Counter()
        self._asked: Counter[SearchNode] = Counter()

    def ask(self, room: int) -> list[SearchNode]:
        self._asked.clear()
        wanted: list[SearchNode] = []
        for _ in range(min(room, self._policy.parallel)):
            node = self._descend()
            if node is None:
                break
            wanted.append(node)
            self._asked[node] += 1
            self._visits.update(node.path)
        for node in wanted:
            self._visits.subtract(node.path)
        return sorted(wanted, key=lambda node: node.index)  # the same parent in a row: one fork

    def tell(self, grown: list[SearchNode]) -> None:
        self._asked.clear()
        for node in grown:
            if node.is_live:
                self._visits.update(node.path)
                for each in node.path:
                    self._totals[each] += node.value  # type: ignore[assignment]

    def best(self) -> SearchNode | None:
        return self._tree.best()

    def _descend(self) -> SearchNode | None:
        """The node that gets the next child; None if no node can."""
        growable = self._growable()
        node = self._tree.root
        while node in growable:
            if len(node.children) + self._asked[node] < self._policy.branching:
                return node
            children = [child for child in node.children if child in growable]
            node = max(children, key=lambda child: (self._bound(node, child), -child.index))
        return None

    def _growable(self) -> set[SearchNode]:
        """Live nodes that may still get a child, and the nodes above them."""
        found: set[SearchNode] = set()
        for node in self._tree.nodes:
            room = self._policy.branching - len(node.children) - self._asked[node]
            if node.is_live and not node.is_complete and room > 0:
                found.update(node.path)
        return found

    def _bound(self, parent: SearchNode, child: SearchNode) -> float:
        visits = max(1, self._visits[child])
        bonus = math.sqrt(math.log(max(1, self._visits[parent])) / visits)
        return self._totals[child] / visits + self._policy.exploration * bonus
