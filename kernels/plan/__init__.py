"""The attention plan: a forest of branches reduced to nodes and cut into units of work.

It knows slots, positions and tiles. It launches nothing.
"""

__all__ = [
    "plan",
    "topology",
    "tree_batch",
    "work_units",
]
