"""Checks of the engine by itself: invariants, leaks, NaN scan, comparison in float64.

They read the tree, the cache and the model. They change nothing.
"""

__all__ = [
    "doctor",
    "float64_check",
    "invariants",
    "leaks",
    "nan_scan",
]
