"""What runs and waits: a serial mailbox, readers that wait for a condition, timers.

It knows no node and no branch.
"""

__all__ = [
    "mailbox",
    "readers",
    "timers",
]
