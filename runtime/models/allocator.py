"""Keeps what loading needs for a moment out of the heap that stays.

Large blocks come from glibc's heaps once one of their size has been freed; packed weights between
freed float32 matrices then keep whole heaps resident (300 MB of them beside 250 MB of weights).
While a model loads, large blocks get pages of their own, which go back when they are freed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # see mallopt(3)
_WHILE_LOADING = 256 * 1024
_AFTERWARDS = 32 * 1024 * 1024  # what glibc itself grows it to


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Map blocks of 256 KiB and more by themselves. Does nothing where the libc is not glibc."""
    mallopt = _mallopt()
    if mallopt is None:
        yield
        return
    mallopt(_M_MMAP_THRESHOLD, _WHILE_LOADING)
    try:
        yield
    finally:
        mallopt(_M_MMAP_THRESHOLD, _AFTERWARDS)
        # Once one is set, glibc moves neither, and giving back the heap's end after every layer
        # would make prefill three times as long.
        mallopt(_M_TRIM_THRESHOLD, 2 * _AFTERWARDS)


def _mallopt() -> ctypes._NamedFuncPointer | None:
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - only glibc has it
        return libc.mallopt
    except (AttributeError, OSError, TypeError):
        return None
