"""Settings of the whole process: allocator, threads, oneDNN, the interpreter, files kept on disk.

Each can be turned off. It knows nothing of models or requests.
"""

__all__ = [
    "cores",
    "device",
    "disk_cache",
    "malloc",
    "native_library",
    "onednn",
    "openmp",
    "served_devices",
    "shared_setting",
    "switch_interval",
    "switched_off",
]
