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
    "linear",
    "loader",
    "locate",
    "low_rank",
    "model",
    "native",
    "rotary",
    "transformers_model",
    "weights",
]
