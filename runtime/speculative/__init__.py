"""Drafts of the tokens that follow: the protocol of a policy, prompt lookup, and how many to draft.

It knows token ids. It knows no model and no request.
"""

__all__ = [
    "draft_length",
    "drafts",
    "ngram_cache",
    "prompt_lookup",
]
