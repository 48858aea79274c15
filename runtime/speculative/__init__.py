"""Drafts by prompt lookup: the tokens that probably come next, and how many to draft.

It knows token ids. It knows no model.
"""

__all__ = [
    "ngram_cache",
    "prompt_lookup",
]
