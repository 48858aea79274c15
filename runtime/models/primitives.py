"""Bounds the machine code that oneDNN keeps: a piece for every number of rows it has ever seen.

A piece takes 0.3 MB and more, and a model makes five for each number of tokens that a step can
have; of the 1,024 that oneDNN keeps unless told otherwise, a server soon has hundreds. Those long
not used are dropped instead, and made anew in 0.3 ms when they are needed: 2 % of the time where
drafts change the number of rows at every step, next to nothing elsewhere. 128 pieces would bring
that to 1.5 %, 256 to 1 %.
"""

from __future__ import annotations

import os

CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
MAX_PRIMITIVES = 32


def bound_primitives() -> None:
    """Set the bound, unless the environment has one. oneDNN asks for it at its first product."""
    os.environ.setdefault(CAPACITY, str(MAX_PRIMITIVES))
