"""What is read of a state while its program runs or after it: variables, text, streams, tokens.

It waits for runs of `radixlang.execution`. It appends nothing and knows no backend.
"""

__all__ = [
    "bound_values",
    "cell_steps",
    "reader",
    "run_tokens",
    "standpoints",
    "state_views",
    "streaming",
    "variables",
]
