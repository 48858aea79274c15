"""Triton kernels and their launches: attention over the tree, appending, rotary, sampling.

They know a plan in device memory. They know no model.
"""

__all__ = [
    "advance_tails",
    "append_kv",
    "backend",
    "graph_plan",
    "launch",
    "layer",
    "plan",
    "rotary_append",
    "sample_tokens",
    "tree_attn",
    "tree_merge",
]
