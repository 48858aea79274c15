"""Prefixes on disk: the file format, the fingerprints that guard it, and the store.

It knows the tree and the KV cache. It knows no request.
"""

__all__ = [
    "file_format",
    "store",
]
