"""The objects of a program's function: its state, expressions, variables and branches.

It records into `radixlang.graph` and reads from runs of `radixlang.execution`. It knows no
program that is called, no backend and no token.
"""

__all__ = [
    "adapting",
    "appending",
    "bound_values",
    "branching",
    "cell_steps",
    "expressions",
    "groups",
    "items",
    "listeners",
    "nesting",
    "reader",
    "roles",
    "run_tokens",
    "standpoints",
    "state",
    "state_hints",
    "state_views",
    "stream_state",
    "streaming",
    "thinking",
    "tracing",
    "variables",
]
