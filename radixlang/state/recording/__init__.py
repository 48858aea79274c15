"""What a state writes into the graph: items as nodes, turns, forks, joins, nested programs.

Each file holds methods of `State` as functions. It reads no value and knows no backend.
"""

__all__ = [
    "adapting",
    "appending",
    "branching",
    "groups",
    "nesting",
    "roles",
    "thinking",
]
