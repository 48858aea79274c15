"""`State`, the object of a program's function, and what belongs to it.

It records into `radixlang.graph` and reads from runs of `radixlang.execution`. It knows no
program that is called, no backend and no token.
"""

__all__ = [
    "contrasting",
    "expressions",
    "listeners",
    "reading",
    "recording",
    "state",
    "state_hints",
    "stream_state",
    "tracing",
]
