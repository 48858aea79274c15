"""The command line: `radixlang run | explain | tree | bench | doctor | prefix`.

Every command parses, calls the language and prints. `_runtime.py` alone opens the engine.
"""

__all__ = [
    "bench",
    "doctor",
    "explain",
    "last_run",
    "main",
    "options",
    "prefix",
    "programs",
    "run",
    "run_views",
    "tree",
]
