"""Several arrays to a device in one copy.

A copy costs some microseconds whatever its size, and one from pageable memory stops the host until
the device has caught up. So what a step has to tell its device is packed into one pinned buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes: every array starts where its dtype may be viewed, and vectors be loaded


def upload(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """The arrays on the device, with their shapes and dtypes; all are views of one buffer."""
    starts, size = [], 0
    for array in arrays:
        starts.append(size)
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    packed = np.empty(size, np.uint8)
    for array, start in zip(arrays, starts, strict=True):
        packed[start : start + array.nbytes] = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )
    sent = to_device(torch.from_numpy(packed), device)
    return [
        sent[start : start + array.nbytes].view(_dtype_of(array)).view(array.shape)
        for array, start in zip(arrays, starts, strict=True)
    ]


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """One asynchronous copy; the host's memory is pinned for it where that means something."""
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def _dtype_of(array: NDArray[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
