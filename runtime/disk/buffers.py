"""Memory of blocks on their way to and from disk, used again: new pages cost as much as a copy."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Buffers:
    """Free buffers of one size, at most `max_free` of them; for any thread."""

    def __init__(self, num_bytes: int, max_free: int) -> None:
        self._num_bytes = num_bytes
        self._free: deque[Bytes] = deque(maxlen=max_free)

    def take(self, num_bytes: int) -> Bytes:
        """Memory of that many bytes, with any content."""
        if num_bytes == self._num_bytes:
            try:
                return self._free.pop()
            except IndexError:
                pass
        return np.empty(num_bytes, np.uint8)

    def give(self, buffer: Bytes) -> None:
        """Let a buffer be used again: nothing reads it any more."""
        if len(buffer) == self._num_bytes and buffer.flags.writeable:
            self._free.append(buffer)

    def clear(self) -> None:
        """Return the memory."""
        self._free.clear()
