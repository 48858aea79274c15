"""What each kind of node does on a branch: text, turns, generations, choices, forks, calls.

A handler gets its node and the context of its run. It knows no state of a program and no engine.
"""

__all__ = [
    "contrast_handlers",
    "fork_handlers",
    "node_context",
    "node_handlers",
    "option_scorers",
    "prompt_parts",
    "split_characters",
    "token_budget",
    "turn_text",
]
