"""Quantities as text."""

from __future__ import annotations


def bytes_text(num_bytes: float) -> str:
    """A number of bytes as text: 1.5 kB, 20.3 MB (powers of 1,000)."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    raise AssertionError("the loop returns")
