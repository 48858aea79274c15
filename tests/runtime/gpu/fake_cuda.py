"""A GPU's current device and memory on a machine without one, behind torch.cuda's own functions.

Tensors stay where they are; what a device would hold is told to `hold`. Memory is counted as
torch's caching allocator does: what is released stays reserved until `empty_cache`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


class FakeCuda:
    """Devices with `total` bytes each; `outside` of it are another process's."""

    def __init__(self, total: int = 64 << 20, num_devices: int = 2) -> None:
        self.total = total
        self.num_devices = num_devices
        self.outside = 0
        self.allocated = self.reserved = self.peak = 0
        self.num_emptied = 0
        self._thread = threading.local()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put these functions in the place of torch.cuda's."""
        for name in ("current_device", "set_device", "device", "mem_get_info", "memory_reserved",
                     "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats",
                     "synchronize", "empty_cache"):  # fmt: skip
            patch.setattr(torch.cuda, name, getattr(self, name))

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        """Allocate inside the context; raises torch.OutOfMemoryError where there is no room."""
        self.allocate(num_bytes)
        try:
            yield
        finally:
            self.allocated -= num_bytes

    def allocate(self, num_bytes: int) -> None:
        """Allocate for good."""
        if self.outside + self.allocated + num_bytes > self.total:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes")
        self.allocated += num_bytes
        self.reserved = max(self.reserved, self.allocated)
        self.peak = max(self.peak, self.allocated)

    # ---- torch.cuda

    def current_device(self) -> int:
        return getattr(self._thread, "index", 0)

    def set_device(self, device: Any) -> None:
        index = torch.device(device).index
        assert 0 <= index < self.num_devices
        self._thread.index = index

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before = self.current_device()
        self.set_device(device)
        try:
            yield
        finally:
            self._thread.index = before

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return self.total - self.outside - self.reserved, self.total

    def memory_reserved(self, device: Any) -> int:
        return self.reserved

    def memory_allocated(self, device: Any) -> int:
        return self.allocated

    def max_memory_allocated(self, device: Any) -> int:
        return self.peak

    def reset_peak_memory_stats(self, device: Any) -> None:
        self.peak = self.allocated

    def synchronize(self, device: Any) -> None:
        pass

    def empty_cache(self) -> None:
        self.reserved = self.allocated
        self.num_emptied += 1
