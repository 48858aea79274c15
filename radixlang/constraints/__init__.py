"""What a generation may say: the specifications, and the types of Python that imply one.

It knows texts and types. It knows no token: `radixlang.runtime.constraints` compiles to masks.
"""

__all__ = [
    "specs",
    "type_schemas",
    "typed_values",
]
