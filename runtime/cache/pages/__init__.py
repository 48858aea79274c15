"""The slots of the KV pool: who owns them, which pages are free, which could be.

It knows slot numbers alone: no token, no tensor and no node.
"""

__all__ = [
    "free_list",
    "page_counts",
    "page_pool",
    "slots",
]
