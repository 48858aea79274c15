"""Runs of a program: nodes are executed in order on the branches of a backend.

It knows the protocol of `radixlang.protocol`. It knows no engine, no tensor and no page.
"""

__all__ = [
    "branch_run",
    "failures",
    "fork_handlers",
    "mailbox",
    "node_context",
    "node_handlers",
    "option_scorers",
    "pieces",
    "prompt_parts",
    "readers",
    "recorder",
    "run",
    "run_loop",
    "run_options",
    "split_characters",
    "timers",
    "token_budget",
    "turn_text",
]
