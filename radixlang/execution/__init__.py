"""Runs of a program: nodes are executed in order on the branches of a backend.

It knows the protocol of `radixlang.protocol`. It knows no engine, no tensor and no page.
"""

__all__ = [
    "branch_run",
    "chat_format",
    "fork_handlers",
    "mailbox",
    "node_handlers",
    "option_scorers",
    "prompt_parts",
    "recorder",
    "run",
    "run_loop",
    "split_characters",
    "timers",
    "token_budget",
]
