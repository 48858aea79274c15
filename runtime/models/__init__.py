"""Causal models: one lean decoder for the common families, transformers' classes for every other.

It knows weights, positions and an attention plan. It knows no request and no tree.
"""

__all__ = [
    "activations",
    "assemble",
    "config",
    "decoder",
    "families",
    "float64",
    "gguf",
    "int8",
    "kept_weights",
    "layers",
    "loader",
    "locate",
    "model",
    "transformers_model",
    "weights",
]
