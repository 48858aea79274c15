"""Counters, immutable statistics made from them, and a stream of typed events.

It records what it is told. It knows no other part of the engine.
"""

__all__ = [
    "events",
    "stats",
]
