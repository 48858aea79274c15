"""Branches and what is asked of them: generations, scores, prefills.

They know tokens and constraints. They know nothing of how a step is computed.
"""

__all__ = [
    "branch",
    "branch_table",
    "generate_request",
    "mask_step",
    "next_use_hints",
    "prefill_request",
    "request",
    "score_request",
]
