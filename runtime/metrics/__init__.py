"""Counters, their immutable pictures, and a stream of typed events.

They are told what happened. They ask nothing.
"""

__all__ = [
    "events",
    "stats",
]
