"""JSON Schema: what masks can enforce is rewritten to it, the rest is refused by its place.

It knows JSON values and schemas. It knows no token.
"""

__all__ = [
    "formats",
    "lowering",
    "negation",
    "patterns",
    "reading",
    "rewriting",
    "search",
    "sequences",
    "shapes",
    "strings",
    "types",
    "unevaluated",
    "validation",
]
