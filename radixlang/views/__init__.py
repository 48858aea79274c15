"""A run as a trace for people: read from its branches, drawn as a page, a cell or text.

It knows finished and running runs. It changes nothing in them.
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
