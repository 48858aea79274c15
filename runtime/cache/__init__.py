"""The radix tree, its pages, and the keys and values in them.

It knows tokens, slots and leases. It knows no request, no model and no text.
"""

__all__ = [
    "compaction",
    "eviction",
    "free_list",
    "kv_cache",
    "lease",
    "node",
    "page_counts",
    "page_pool",
    "pins",
    "quantized_tier",
    "radix_tree",
    "slots",
    "snapshot",
    "tree_structure",
]
