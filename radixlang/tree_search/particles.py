"""Sequential Monte Carlo over branches: resampling is forking, dead particles are released.

A particle is a path of the tree. The value of a node is the logarithm of a potential: the search
samples paths from the program's own distribution times exp(value) of their ends. Each step weighs
a particle by exp(value - value of its parent); particles are resampled when their weights become
uneven. (Doucet, de Freitas and Gordon 2001; for language models Lew et al. 2023.)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from radixlang.errors import ParameterError, ProgramError
from radixlang.tree_search.policies import Searcher, at_least_one
from radixlang.tree_search.tree import SearchNode, SearchTree


@dataclass(frozen=True, slots=True)
class Particle:
    """A path, as its last node, and its weight; the weights of all particles sum to 1."""

    node: SearchNode
    weight: float


@dataclass(frozen=True, slots=True)
class SMC:
    """Sample paths in proportion to their probability times exp(value).

    The state goes on from one particle, drawn by weight. A value of -inf, and any failure, kills a
    particle. The search ends when all particles are complete, so it needs a depth or a test.

    Args:
        n: number of particles.
        resample_below: resample when the effective number of particles, 1 ÷ Σ weight², is below
            this share of n; 1 always resamples, 0 never.
    """

    n: int = 16
    resample_below: float = 0.5

    def __post_init__(self) -> None:
        at_least_one(n=self.n)
        if not 0 <= self.resample_below <= 1:
            raise ParameterError(
                f"resample_below is a share from 0 to 1, got {self.resample_below!r}"
            )

    def start(self, tree: SearchTree, seed: int) -> ParticleSearcher:
        """A searcher for one tree, which resamples by the seed."""
        return ParticleSearcher(self, tree, seed)


class ParticleSearcher(Searcher):
    """One search by particles.

    Attributes:
        nodes: the node of each particle; a complete one may stand there often.
        log_weights: of each particle.
        log_evidence: logarithm of the mean of exp(value) over the program's own paths.
    """

    def __init__(self, policy: SMC, tree: SearchTree, seed: int) -> None:
        self._policy = policy
        self._tree = tree
        self._random = random.Random(f"particles of {seed}")
        self.nodes = [tree.root] * policy.n
        self.log_weights = [0.0] * policy.n
        self._log_evidence = 0.0

    @property
    def log_evidence(self) -> float:
        """Estimate of log E[exp(value)]; the estimate of the mean itself is unbiased."""
        return self._log_evidence + log_mean_exp(self.log_weights)

    def particles(self) -> tuple[Particle, ...]:
        """The particles with normalised weights."""
        weights = normalised(self.log_weights)
        return tuple(map(Particle, self.nodes, weights))

    def ask(self, room: int) -> list[SearchNode]:
        growing = list(filter(_grows, self.nodes))
        if len(growing) > room:
            raise ParameterError(
                f"the budget has room for {room} branches and {len(growing)} particles go on: all "
                "or none may. Give a budget of at least n × depth"
            )
        return growing

    def tell(self, grown: list[SearchNode]) -> None:
        rest = iter(grown)
        for place, node in enumerate(self.nodes):
            if _grows(node):
                child = next(rest)
                before = 0.0 if node.parent is None else node.value
                self.nodes[place] = child
                self.log_weights[place] += child.value - before
        weights = self._weights()
        if 1 / sum(w * w for w in weights) < self._policy.resample_below * len(weights):
            self._resample(weights)
        kept = {node for each in self.nodes for node in each.path}
        for node in self._tree.nodes[1:]:
            if node.is_live and node not in kept:
                self._tree.prune(node)

    def best(self) -> SearchNode | None:
        (index,) = systematic(normalised(self.log_weights), 1, self._random.random())
        return self.nodes[index]

    def _weights(self) -> list[float]:
        if max(self.log_weights) == -math.inf:
            last = max((node for node in self.nodes), key=lambda node: node.index)
            raise ProgramError(
                f"all {len(self.nodes)} particles are dead after step {last.depth}: every value "
                f"was -inf, or the step failed; the last error: {last.error}. Take more particles, "
                "or a potential that rules out less at once"
            ) from last.error
        return normalised(self.log_weights)

    def _resample(self, weights: list[float]) -> None:
        self._log_evidence += log_mean_exp(self.log_weights)
        picked = systematic(weights, len(weights), self._random.random())
        self.nodes = [self.nodes[index] for index in picked]
        self.log_weights = [0.0] * len(picked)


def _grows(node: SearchNode) -> bool:
    return node.is_live and not node.is_complete


def systematic(weights: Sequence[float], n: int, offset: float) -> list[int]:
    """n indices, each in proportion to its weight, by one random offset from 0 to 1.

    The number of copies of an index is its expected number, rounded up or down; an index of weight
    0 has none.
    """
    picked: list[int] = []
    at, upto = 0, weights[0]
    for step in range(n):
        point = (step + offset) / n * math.fsum(weights)
        while point >= upto and at + 1 < len(weights):
            at += 1
            upto += weights[at]
        picked.append(at if weights[at] > 0 else _last_alive(weights, at))
    return picked


def _last_alive(weights: Sequence[float], at: int) -> int:
    """The nearest index before with a weight: rounding has led past the last one."""
    return next(index for index in range(at, -1, -1) if weights[index] > 0)


def normalised(log_weights: Sequence[float]) -> list[float]:
    """Weights that sum to 1."""
    highest = max(log_weights)
    raw = [math.exp(each - highest) for each in log_weights]
    total = math.fsum(raw)
    return [each / total for each in raw]


def log_mean_exp(values: Sequence[float]) -> float:
    """The logarithm of the mean of exp(value)."""
    highest = max(values)
    return highest + math.log(math.fsum(math.exp(each - highest) for each in values) / len(values))


def expectation(particles: Sequence[Particle], of: Callable[[SearchNode], float]) -> float:
    """The weighted mean of a function of the particles' nodes."""
    return math.fsum(each.weight * of(each.node) for each in particles)
