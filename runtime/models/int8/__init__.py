"""The decoder in 8 bits for the CPU: folded weights, quantised products, the native step.

It knows the lean decoder's configuration. It knows no request and no tree.
"""

__all__ = [
    "adapter_fold",
    "build",
    "decoder",
    "linear",
    "ops",
    "rotation",
    "weight_cache",
]
