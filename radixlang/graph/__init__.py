"""The graph of a program: its nodes, passes over them, lints, drawings and a JSON form.

It knows nothing of how nodes are executed and nothing of a model.
"""

__all__ = [
    "drawing",
    "graph_json",
    "lints",
    "next_use",
    "nodes",
    "passes",
    "token_bounds",
]
