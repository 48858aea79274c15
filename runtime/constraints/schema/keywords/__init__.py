"""The keywords of JSON Schema, one entry each: form, rewriting, complement and test together.

It knows schemas and values. It knows no document's order and no engine.
"""

__all__ = [
    "arrays",
    "choices",
    "counts",
    "entry",
    "formats",
    "numbers",
    "objects",
    "references",
    "sequences",
    "strings",
    "table",
    "unevaluated",
    "values",
]
