"""Regexes of Python and of ECMA 262: parsed, made free of assertions, written for the mask engine.

A pattern is a tree of characters, sequences and repeats. It knows no grammar, no schema, no token.
"""

__all__ = [
    "assertion_tree",
    "automaton",
    "backtracking",
    "character_sets",
    "ecma_regex",
    "pattern",
    "plain_regex",
    "python_regex",
    "regex_items",
    "regex_translation",
    "regex_tree",
    "unicode_properties",
]
