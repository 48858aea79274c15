"""References in plain torch and float64, with the signatures of what they check."""

__all__ = [
    "attention",
    "backend",
    "fused",
    "grouped",
    "pages",
]
