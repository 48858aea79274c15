"""Which sequences run in the next step, in which order, and for how long they may.

It knows counts of tokens and pages. It knows no tensor and no text.
"""

__all__ = [
    "deadlines",
    "scheduler",
    "sequence",
    "waiting_queue",
]
