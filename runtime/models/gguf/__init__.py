"""GGUF files: metadata, tensors, configuration and tokenizer.

They know the file format and our names of weights. They know no arithmetic of a decoder.
"""

__all__ = [
    "config",
    "file",
    "tokenizer",
    "weights",
]
