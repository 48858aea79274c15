"""The engine's checks of itself: invariants, leaks, NaN scan, comparison with float64.

It reads the tree, the cache and the model. It changes nothing.
"""

__all__ = [
    "doctor",
    "float64_check",
    "invariants",
    "leaks",
    "nan_scan",
]
