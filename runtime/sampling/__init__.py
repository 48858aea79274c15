"""From logits to tokens, for all rows of a step at once, with random numbers by key.

It knows rows of logits and sampling parameters. It knows no branch and no tree.
"""

__all__ = [
    "contrast",
    "counter_rng",
    "device_sampler",
    "logits_functions",
    "normaliser",
    "penalties",
    "row",
    "row_table",
    "sampler",
    "token_counts",
    "wide_rows",
]
