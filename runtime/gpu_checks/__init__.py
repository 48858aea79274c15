"""The checks of a GPU that `radixlang doctor --gpu` runs: kernels, sampler, graphs, one decode.

It runs kernels and a whole runtime, and knows nothing of the command line.
"""

__all__ = [
    "kernel_checks",
    "model_checks",
    "report",
]
