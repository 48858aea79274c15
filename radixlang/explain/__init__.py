"""Predictions of a run's cost without a model, and what sharing has saved afterwards.

It knows graphs and tokenizers. It knows no engine.
"""

__all__ = [
    "dry_run",
    "explanation",
    "savings",
]
