"""What can be appended to a state: text, `gen`, `select`, turns, and values not known yet.

An expression is a tuple of items, bound to no run. It knows no state, no run and no backend.
"""

__all__ = [
    "builders",
    "items",
    "thought",
]
