"""One forward pass: the sequences of a step as one batch for the model, and what it may take.

It knows models, cache and plans. It knows no request, no queue and no sampler.
"""

__all__ = [
    "cuda_graphs",
    "memory_budget",
    "model_runner",
    "step_adapters",
    "step_memory",
    "step_pages",
]
