"""Constraints compiled to token masks, and finished texts checked against them.

It knows specifications and a vocabulary. It knows no branch, no step and no memory.
"""

__all__ = [
    "compiled",
    "completion",
    "engine_errors",
    "explain",
    "grammar",
    "json_spelling",
    "lowering",
    "mask_worker",
    "matcher",
    "next_text",
    "regex",
    "regular_completion",
    "schema",
    "time_limit",
    "vocabulary",
]
