"""Returns unused memory to the system, sooner than glibc does by itself.

Large blocks come from glibc's heaps once one of their size has been freed; packed weights between
freed float32 matrices then keep whole heaps resident (300 MB of them with 250 MB of weights).
While a model loads, large blocks are mapped separately and returned when they are freed.

Afterwards steps allocate from the heaps, which is fast and keeps some 20 to 60 MB of free memory;
the engine returns it when idle, and after a number of rows. All of this does nothing if the libc is
not glibc.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from radixlang.runtime.process.switched_off import is_off

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # see mallopt(3)
_WHILE_LOADING = 256 * 1024
_AFTERWARDS = 32 * 1024 * 1024  # what glibc itself grows it to
_LARGE = 128 * 1024  # bytes of a block whose end has glibc look at the end of its heap
_LARGE_STEP = 256  # rows of a step that takes the most memory; the next may be as large
_ROWS_BETWEEN = 192  # of steps, after which the heap is given back
_HELD, _OF_A_FILE = 1 << 62, np.uint64(1 << 61)  # in memory or swap; see proc_pid_pagemap(5)


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Map blocks of 256 KiB and more separately."""
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _WHILE_LOADING)
    try:
        yield
    finally:
        _keep_large_blocks(libc)


def give_back() -> None:
    """Return the heaps' free memory to the system, with the end of the calling thread's heap."""
    libc = _glibc()
    if libc is None:
        return
    # malloc_trim leaves the end of every heap but the main thread's, which is most of it.
    libc.mallopt(_M_TRIM_THRESHOLD, _LARGE)
    libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(_LARGE))))
    libc.malloc_trim(ctypes.c_size_t(0))
    _keep_large_blocks(libc)


class StepHeap:
    """The heap of a thread that runs steps, whose free memory is returned regularly.

    Steps of many sizes leave holes between live blocks, into which the next blocks do not fit:
    30 MB after a prefill, and 20 MB more after some dozens of steps with drafts. Returning them
    takes 2 to 3 ms, and some more until their pages are mapped again.
    """

    def __init__(self) -> None:
        self._num_rows = 0

    def computed(self, num_rows: int) -> None:
        """Count a finished step of so many rows, and return free memory if it is due."""
        self._num_rows += num_rows
        if self._num_rows >= _ROWS_BETWEEN and num_rows < _LARGE_STEP:
            self._num_rows = 0
            give_back()


def release_code() -> None:
    """Release all libraries' pages of machine code, most of which only start-up has run.

    They are clean pages of files: this lowers resident memory by 55 to 80 MB and private memory by
    nothing (decision 10). Code that runs again is mapped again. Code changed in memory stays.
    """
    libc = _glibc()
    if libc is None or is_off("code_pages"):
        return
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        place, access, *_, path = line.split(maxsplit=5)
        if access == "r-xp" and ".so" in path:
            start, stop = (int(end, 16) for end in place.split("-"))
            if is_as_in_file(start, stop):
                size = ctypes.c_size_t(stop - start)
                libc.madvise(ctypes.c_void_p(start), size, mmap.MADV_DONTNEED)


def is_as_in_file(start: int, stop: int) -> bool:
    """Whether no page of a file's mapping, between two addresses, has been written to."""
    first, last = (address // mmap.PAGESIZE for address in (start, stop))
    try:
        with Path("/proc/self/pagemap").open("rb", buffering=0) as pages:
            pages.seek(8 * first)
            entries = np.frombuffer(pages.read(8 * (last - first)), np.uint64)
    except OSError:
        return False
    is_held = entries >= _HELD
    return len(entries) == last - first and bool((entries[is_held] & _OF_A_FILE).all())


def _keep_large_blocks(libc: ctypes.CDLL) -> None:
    libc.mallopt(_M_MMAP_THRESHOLD, _AFTERWARDS)
    # Once one is set, glibc adapts neither, and returning the heap's end after every layer would
    # make prefill take three times as long.
    libc.mallopt(_M_TRIM_THRESHOLD, 2 * _AFTERWARDS)


def _glibc() -> ctypes.CDLL | None:
    if is_off("malloc"):
        return None
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - only glibc has it
    except (AttributeError, OSError, TypeError):
        return None
    libc.malloc.restype = ctypes.c_void_p
    return libc
