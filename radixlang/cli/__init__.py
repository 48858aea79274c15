"""The command line: `radixlang run | chat | serve | explain | lint | tree | …`.

It parses, opens a runtime for a command and reports errors. Only `_runtime.py` opens the engine.
"""

__all__ = [
    "commands",
    "last_run",
    "main",
    "options",
    "programs",
    "run_views",
]
