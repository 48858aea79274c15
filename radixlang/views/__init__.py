"""A run as a trace for people: read from its branches, drawn as a page, a cell or text.

They know a finished or running run. They change nothing in it.
"""

__all__ = [
    "live",
    "page",
    "spans",
    "timeline",
    "trace",
    "trace_builder",
    "trace_html",
    "trace_text",
]
