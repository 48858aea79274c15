"""The attention plan: a forest of branches reduced to nodes, advanced step by step.

It knows slots and positions, and of its backend only the protocol. It launches nothing.
"""

__all__ = [
    "page_choice",
    "page_limits",
    "plan",
    "topology",
    "tree_batch",
]
