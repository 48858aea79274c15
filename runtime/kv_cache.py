"""Keys and values of every slot, one pair of preallocated tensors a layer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.errors import ParameterError
from radixlang.kernels.attention import LayerKV

Slots = NDArray[np.int32]


class KVCache:
    """The memory behind a PagePool: `cache[layer].k` and `.v` are [num_slots, num_kv_heads,
    head_dim].

    Memory starts as zeros, which an operating system commits page by page when first written.
    """

    def __init__(
        self,
        num_slots: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_slots = num_slots
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = torch.device(device)
        shape = (num_slots, num_kv_heads, head_dim)
        self._layers = [
            LayerKV(
                torch.zeros(shape, dtype=dtype, device=self.device),
                torch.zeros(shape, dtype=dtype, device=self.device),
            )
            for _ in range(num_layers)
        ]

    def __getitem__(self, layer: int) -> LayerKV:
        return self._layers[layer]

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * len(self._layers) * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def move(self, source: Slots, target: Slots) -> None:
        """Copy slots; source and target may overlap, all is read before anything is written."""
        src, dst = self._index(source), self._index(target)
        for layer in self._layers:
            layer.k[dst] = layer.k[src]
            layer.v[dst] = layer.v[src]

    def read(self, slots: Slots) -> Tensor:
        """[num_layers, 2, n, num_kv_heads, head_dim] copy of the slots' keys and values."""
        index = self._index(slots)
        return torch.stack([torch.stack((kv.k[index], kv.v[index])) for kv in self._layers])

    def write(self, slots: Slots, data: Tensor) -> None:
        """Store what `read` returned for as many slots."""
        index = self._index(slots)
        shape = (len(self._layers), 2, len(slots), self.num_kv_heads, self.head_dim)
        if tuple(data.shape) != shape:
            raise ParameterError(f"KV data has shape {tuple(data.shape)}, expected {shape}")
        for layer, (k, v) in zip(self._layers, data.to(self.device, self.dtype), strict=True):
            layer.k[index] = k
            layer.v[index] = v

    def poison(self, slots: Slots) -> None:
        """Fill freed slots with NaN (debug mode): whoever still reads them shows at once."""
        index = self._index(slots)
        for layer in self._layers:
            layer.k[index] = float("nan")
            layer.v[index] = float("nan")

    def _index(self, slots: Slots) -> Tensor:
        return torch.from_numpy(np.asarray(slots, np.int64)).to(self.device)
