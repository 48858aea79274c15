"""Programs: functions whose first parameter is their state, called, batched, traced and compiled.

It connects states, runs, records and explanations. It knows no engine.
"""

__all__ = [
    "compiled",
    "launching",
    "parameters",
    "program",
    "strategies",
    "tools",
]
