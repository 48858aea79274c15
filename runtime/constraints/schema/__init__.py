"""JSON Schema: schemas are rewritten for masks; keywords that masks cannot enforce are refused.

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
