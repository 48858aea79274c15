"""Branches and their requests: generations, scorings, prefills.

It knows tokens and constraints. It knows nothing of how a step is computed.
"""

__all__ = [
    "branch",
    "branch_state",
    "branch_table",
    "generate_request",
    "inbox",
    "mask_step",
    "next_token_request",
    "next_use_hints",
    "partner",
    "prefill_request",
    "request",
    "score_request",
    "score_rows",
]
