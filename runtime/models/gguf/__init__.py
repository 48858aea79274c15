"""GGUF files: metadata, tensors, configuration and tokenizer.

It knows the file format and our names of weights; of a decoder only which matrices it has.
"""

__all__ = [
    "config",
    "file",
    "grouped",
    "laid_out",
    "tokenizer",
    "weights",
]
