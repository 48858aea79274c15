"""Runs of a program: nodes are executed in order on the branches of a backend.

It knows the protocol of `radixlang.protocol`. It knows no engine, no tensor and no page.
"""

__all__ = [
    "branch_run",
    "failures",
    "handlers",
    "pieces",
    "recorder",
    "run",
    "run_loop",
    "run_options",
    "threads",
]
