"""The commands, a file each: `run(args)` does the work and returns the exit code.

A command calls the language and prints. It knows no flag that it was not given.
"""

__all__ = [
    "bench",
    "chat",
    "doctor",
    "explain",
    "lint",
    "prefix",
    "run",
    "serve",
    "tree",
]
