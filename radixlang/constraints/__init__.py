"""Constraints on a generated text: the specifications, and the Python types that imply one.

It knows texts and types. It knows no tokens: `radixlang.runtime.constraints` compiles to masks.
"""

__all__ = [
    "json_values",
    "json_writing",
    "specs",
    "text_patterns",
    "typed_values",
    "types",
]
