"""Grammars read by lark itself, lowered to the grammars of the mask engine.

It knows lark, and the regexes of the package beside it. It knows no schema and no token.
"""

__all__ = [
    "alternatives",
    "error_location",
    "finished_text",
    "loading",
    "lowering",
    "terminals",
    "unbounded",
]
