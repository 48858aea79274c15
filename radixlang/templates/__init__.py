"""Template files: parsed with lark and turned into steps that append to a state.

It makes the same graph as Python programs. It knows nothing of execution.
"""

__all__ = [
    "expressions",
    "loading",
    "source",
    "statements",
    "syntax_errors",
]
