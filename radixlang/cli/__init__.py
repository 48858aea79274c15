"""The command line: `radixlang run | chat | serve | explain | lint | tree | …`.

Every command parses, calls the language and prints. Only `_runtime.py` opens the engine.
"""

__all__ = [
    "bench",
    "chat",
    "doctor",
    "explain",
    "last_run",
    "lint",
    "main",
    "options",
    "prefix",
    "programs",
    "run",
    "run_views",
    "serve",
    "tree",
]
