"""Which sequences run in the next step, in which order, and for how long they may.

It knows counts of tokens and pages, and who holds them. It knows no branch and no text.
"""

__all__ = [
    "kv_manager",
    "scheduler",
    "sequence",
    "waiting_queue",
]
