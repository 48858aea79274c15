"""The decoder in 8 bits for the CPU: folded weights, quantised products, compiled operations.

It knows the lean decoder's configuration. It knows no request and no tree.
"""

__all__ = [
    "build",
    "compile_worker",
    "compiled",
    "decoder",
    "linear",
    "ops",
    "rotation",
    "weight_cache",
]
