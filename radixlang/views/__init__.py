"""A run as a tree for people: gathered from its branches and written as an HTML page.

They know a finished or running run. They change nothing in it.
"""

__all__ = [
    "page",
    "run_tree",
]
