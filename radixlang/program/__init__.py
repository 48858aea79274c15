"""What a user writes: programs, their states, what states append, and turns of a conversation.

It records into `radixlang.graph` and starts runs of `radixlang.execution`. It knows no backend,
no token and no memory.
"""

__all__ = [
    "chat",
    "compiled",
    "expressions",
    "groups",
    "program",
    "role_context",
    "state",
    "state_values",
    "state_views",
    "strategies",
    "tools",
    "tracing",
    "variables",
]
