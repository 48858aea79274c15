"""Grammars read by lark itself and regexes by Python's own parser, lowered to masks.

It knows lark's and Python's parsers, and ECMA 262's regexes. It knows no token.
"""

__all__ = [
    "alternatives",
    "assertion_tree",
    "automaton",
    "backtracking",
    "character_sets",
    "ecma_regex",
    "error_location",
    "finished_text",
    "loading",
    "lowering",
    "pattern",
    "plain_regex",
    "python_regex",
    "regex_items",
    "regex_translation",
    "regex_tree",
    "terminals",
    "unbounded",
    "unicode_properties",
]
