"""Which sequences run in the next step, in which order, and with how many tokens.

It knows counts of tokens and pages, and who holds them. It knows no branch and no text.
"""

__all__ = [
    "kv_manager",
    "read_ahead",
    "scheduler",
    "sequence",
    "waiting_queue",
]
