"""Parts of a decoder: projections and norms, rotary embedding, adapters, native layers.

They know a configuration and tensors. They know no file, no checkpoint and no request.
"""

__all__ = [
    "linear",
    "low_rank",
    "native",
    "rotary",
]
