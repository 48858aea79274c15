"""The keywords of JSON Schema, one entry each: form, rewriting, complement and test together.

They know schemas and values. They know no document's order and no engine.
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
