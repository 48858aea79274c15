"""Settings of the whole process: allocator, threads, oneDNN, the interpreter, kept files.

Each can be turned off. They know nothing of models or requests.
"""

__all__ = [
    "disk_cache",
    "malloc",
    "onednn",
    "openmp",
    "shared_setting",
    "switch_interval",
    "switched_off",
]
