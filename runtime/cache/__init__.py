"""The radix tree, its pages, and the keys and values in them.

It knows tokens, slots and leases. It knows no request, no model and no text.
"""

__all__ = [
    "compaction",
    "eviction",
    "kv_cache",
    "lease",
    "node",
    "pages",
    "pins",
    "quantized_tier",
    "radix_tree",
    "snapshot",
    "tree_changes",
    "tree_structure",
]
