"""lark in front: grammars and regexes as their own tools read them, lowered to masks.

It knows lark's and Python's own parsers. It knows no token.
"""

__all__ = [
    "alternatives",
    "backtracking",
    "character_sets",
    "error_location",
    "loading",
    "lowering",
    "pattern",
    "python_regex",
    "subprocess_check",
    "terminals",
    "unbounded",
]
