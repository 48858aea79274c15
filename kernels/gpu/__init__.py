"""Triton kernels and their launches: attention over the tree, appending, rotary, sampling.

They know a plan in device memory. They know no model.
"""

__all__ = [
    "advance_tails",
    "append_kv",
    "backend",
    "device_plan",
    "graph_plan",
    "launch",
    "layer",
    "plan_units",
    "rotary_append",
    "sample_tokens",
    "step_buffer",
    "tiles",
    "tree_attn",
    "tree_merge",
    "work_units",
]
