"""Prefixes on disk: the file format, the fingerprints that guard it, and the store.

They know the tree and the KV cache. They know no request.
"""

__all__ = [
    "file_format",
    "fingerprint",
    "store",
]
