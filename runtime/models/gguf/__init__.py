"""GGUF files: metadata, tensors, configuration and tokenizer.

It knows the file format and our names of weights. It knows no arithmetic of a decoder.
"""

__all__ = [
    "config",
    "file",
    "tokenizer",
    "weights",
]
