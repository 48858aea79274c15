"""Rollouts: the tokens of a run as a tree, and as rows for a trainer.

It knows finished generations and their tokens, and nothing of a runtime or of a trainer's library.
"""

from radixlang.rollouts.rows import PackedTree, Rollout
from radixlang.rollouts.token_tree import TokenNode, TokenTree

__all__ = ["PackedTree", "Rollout", "TokenNode", "TokenTree"]
