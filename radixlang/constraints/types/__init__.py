"""Python types as JSON Schemas: the standard library's, dataclasses, pydantic models, tools.

It knows types and schemas. It knows no specification and no value that was generated.
"""

__all__ = [
    "pydantic_checks",
    "pydantic_schemas",
    "pydantic_types",
    "rust_patterns",
    "schema_parts",
    "standard_types",
    "tool_schemas",
    "type_members",
    "type_schemas",
]
