"""`search`: a policy drives a tree until its budget is spent, and the program goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from radixlang.errors import ProgramError
from radixlang.program.strategies import Step
from radixlang.state.state import State
from radixlang.tree_search.particles import Particle, ParticleSearcher, expectation
from radixlang.tree_search.policies import BestFirst, Policy, at_least_one
from radixlang.tree_search.tree import SearchNode, SearchTree, Test
from radixlang.tree_search.valuing import Value


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search has found.

    Attributes:
        best: the node from which the program goes on.
        nodes: all nodes in the order in which they were made, failed and pruned ones too, without
            the root. Their values and variables stay readable, their branches have ended.
        particles: of SMC, the particles with their weights, else empty.
        log_evidence: of SMC, the estimate of log E[exp(value)], else None.
    """

    best: SearchNode
    nodes: tuple[SearchNode, ...]
    particles: tuple[Particle, ...] = ()
    log_evidence: float | None = None

    def mean(self, of: Callable[[SearchNode], float]) -> float:
        """The weighted mean of a function over SMC's particles."""
        return expectation(self.particles, of)


def search(
    state: State,
    expand: Step,
    value: Value,
    *,
    policy: Policy | None = None,
    budget: int = 100,
    depth: int | None = None,
    is_complete: Test | None = None,
    seed: int | None = None,
) -> SearchResult:
    """Search for a good continuation of a state, and continue the state from it.

    Args:
        state: where the search begins, and which goes on from the best node found.
        expand: the step from a node to a child: what to append, or a function that appends to the
            branch it is given. Children of a node differ by their own random numbers.
        value: how good a branch is, higher is better. For SMC: the logarithm of a potential. An
            `async def` function may generate on a copy of the branch; those of all new nodes then
            run in one batch, and their branches end with it.
        policy: BestFirst, Beam, MCTS or SMC, or another object with `start`; BestFirst() by
            default.
        budget: most branches made.
        depth: most steps of a path.
        is_complete: whether no step is to follow a branch.
        seed: of the policy's own draws; the run's by default.

    Raises:
        ProgramError: no branch is left: every step or value failed.
        ParameterError: a number is out of range.
    """
    at_least_one(budget=budget)
    tree = SearchTree(state, expand, value, depth=depth, is_complete=is_complete)
    searcher = (policy or BestFirst()).start(tree, state.seed if seed is None else seed)
    try:
        while (room := budget - tree.num_made) > 0 and (parents := searcher.ask(room)):
            searcher.tell(tree.grow(parents))
        best = searcher.best()
        if best is None or best is tree.root:
            raise _nothing_left(tree)
        tree.finish(best)
    except BaseException:
        if state.error is None:
            tree.close()
        raise
    nodes = tuple(tree.nodes[1:])
    if isinstance(searcher, ParticleSearcher):
        return SearchResult(best, nodes, searcher.particles(), searcher.log_evidence)
    return SearchResult(best, nodes)


def _nothing_left(tree: SearchTree) -> ProgramError:
    errors = [node.error for node in tree.nodes if node.error is not None]
    last = errors[-1] if errors else None
    error = ProgramError(
        f"no branch of the search is left: {len(errors)} of {tree.num_made} failed"
        + (f"; the last: {last}" if last else ", the others have the value -inf")
    )
    error.__cause__ = last
    return error
