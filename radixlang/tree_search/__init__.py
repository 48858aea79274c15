"""Search over branches: best first, beams, Monte Carlo trees, sequential Monte Carlo.

Knows nodes, their values and the policies that choose between them; a node is a fork of a state.
Knows nothing of models and constraints: a step and its value are the program's.
"""

from __future__ import annotations

from radixlang.tree_search.monte_carlo import MCTS
from radixlang.tree_search.particles import SMC, Particle
from radixlang.tree_search.policies import Beam, BestFirst, Policy, Searcher
from radixlang.tree_search.run_search import SearchResult, search
from radixlang.tree_search.tree import SearchNode, SearchTree

__all__ = [
    "MCTS",
    "SMC",
    "Beam",
    "BestFirst",
    "Particle",
    "Policy",
    "SearchNode",
    "SearchResult",
    "SearchTree",
    "Searcher",
    "search",
]
