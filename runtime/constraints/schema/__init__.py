"""JSON Schema: what masks can enforce is rewritten to it, the rest is refused by its place.

It knows JSON values and schemas. It knows no token.
"""

__all__ = [
    "keywords",
    "lowering",
    "patterns",
    "reading",
    "rewriting",
    "search",
    "strings",
    "types",
    "validation",
]
