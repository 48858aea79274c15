"""Template files: parsed with lark and turned into steps that append to a state.

They make the same graph as Python programs. They know nothing of execution.
"""

__all__ = [
    "expressions",
    "loading",
    "source",
    "statements",
    "syntax_errors",
]
