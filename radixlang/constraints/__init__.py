"""Constraints on a generated text: the specifications, and the Python types that imply one.

It knows texts and types. It knows no tokens: `radixlang.runtime.constraints` compiles to masks.
"""

__all__ = [
    "json_values",
    "json_writing",
    "pydantic_checks",
    "pydantic_schemas",
    "pydantic_types",
    "rust_patterns",
    "schema_parts",
    "specs",
    "standard_types",
    "text_patterns",
    "tool_schemas",
    "type_members",
    "type_schemas",
    "typed_values",
]
