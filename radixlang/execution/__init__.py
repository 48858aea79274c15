"""Runs of a program: nodes are executed in order on the branches of a backend.

It knows the protocol of `radixlang.protocol`. It knows no engine, no tensor and no page.
"""

__all__ = [
    "branch_run",
    "fork_handlers",
    "listeners",
    "mailbox",
    "node_handlers",
    "option_scorers",
    "prompt_parts",
    "recorder",
    "run",
    "run_loop",
    "streaming",
    "timers",
    "token_budget",
]
