"""Bounds the machine code that oneDNN keeps: a piece for every number of rows it has ever seen.

A piece takes 0.3 MB and more, and a model makes five for each number of rows; padding to whole
tiles (`int8/linear.py`) leaves one number in sixteen. Of the 1,024 that oneDNN keeps unless told
otherwise, a server would still come to a hundred. The least recently used are
dropped instead, and compiled again in 0.3 ms when they are needed.
"""

from __future__ import annotations

import os

CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
MAX_PRIMITIVES = 32


def bound_primitives() -> None:
    """Set the bound, unless the environment has one. oneDNN reads it at its first product."""
    os.environ.setdefault(CAPACITY, str(MAX_PRIMITIVES))
