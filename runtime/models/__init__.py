"""Causal models: one lean decoder for the common families, an adapter for every other.

They know weights, positions and an attention plan. They know no request and no tree.
"""

__all__ = [
    "adapter",
    "assemble",
    "config",
    "decoder",
    "families",
    "float64",
    "gguf",
    "int8",
    "linear",
    "loader",
    "locate",
    "model",
    "rotary",
    "weights",
]
