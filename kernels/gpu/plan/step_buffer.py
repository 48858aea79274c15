"""Memory of fixed place on a device that a step is written to, in one copy from pinned memory."""

from __future__ import annotations

import torch


class StepBuffer:
    """`host` int32 [size], which the caller fills, and `device` int32 [size] as last sent."""

    def __init__(self, size: int, device: torch.device) -> None:
        is_gpu = device.type == "cuda"
        self._pinned = torch.zeros(size, dtype=torch.int32, pin_memory=is_gpu)
        self.host = self._pinned.numpy()
        self.device = torch.zeros(size, dtype=torch.int32, device=device)
        self._copied: torch.cuda.Event | None = None

    def begin(self) -> None:
        """Wait until the last copy has been read: call it before `host` is changed."""
        if self._copied is not None:
            self._copied.synchronize()

    def send(self, size: int | None = None) -> None:
        """Copy the first `size` words, by default all, without waiting."""
        self.device[:size].copy_(self._pinned[:size], non_blocking=True)
        if self.device.device.type == "cuda":
            self._copied = torch.cuda.current_stream(self.device.device).record_event()
