"""The radix tree, its pages, and the keys and values that lie in them.

It knows tokens, slots and leases. It knows no request, no model and no text.
"""

__all__ = [
    "batch_insert",
    "compaction",
    "eviction",
    "free_list",
    "kv_cache",
    "lease",
    "node",
    "page_counts",
    "page_pool",
    "quantized_tier",
    "radix_tree",
    "slots",
    "snapshot",
    "tree_structure",
]
