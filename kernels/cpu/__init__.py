"""Attention on the CPU: the plan as a few calls of torch's flash kernel, and their merge.

It knows a plan and a KV pool. It knows no model.
"""

__all__ = [
    "attention",
    "backend",
    "calls",
    "schedule",
    "split_kv",
]
