"""The engine's thread: takes commands, runs steps and publishes statistics.

It knows requests, the cache and a model. It knows nothing of programs or graphs.
"""

__all__ = [
    "admin",
    "assemble",
    "deadlines",
    "engine",
    "idle_tasks",
    "output_checks",
    "request_table",
    "self_audit",
    "step",
    "step_errors",
    "step_sampling",
    "warm_up",
]
