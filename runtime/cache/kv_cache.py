"""Keys and values of every slot: preallocated tensors by layer, exact and, if asked for, 8-bit."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.errors import ParameterError, RuntimeClosedError
from radixlang.kernels.layer_kv import LayerKV

Slots = NDArray[np.int32]

MAX_FLOATS = 2**22  # values in float32 at once while slots are quantised: 16 MiB, and as much again


class KVCache:
    """The memory behind a PagePool: `cache[layer].k` and `.v` are [num_slots, num_kv_heads,
    head_dim].

    Memory starts as zeros, which an operating system commits page by page when first written.
    With `num_cold_slots`, there are int8 planes too, for cold nodes, with one float32 scale for
    each token and head: value = int8 × scale.
    """

    def __init__(
        self,
        num_slots: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        num_cold_slots: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_slots = num_slots
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = torch.device(device)
        self.num_cold_slots = num_cold_slots
        self._pages: list[mmap.mmap] = []  # the memory of the exact planes, if it was mapped
        self._num_layers = num_layers
        self._memory: list[LayerKV] | None = [self._new_layer() for _ in range(num_layers)]

    def __getitem__(self, layer: int) -> LayerKV:
        return self._layers[layer]

    def __len__(self) -> int:
        return self._num_layers

    @property
    def _layers(self) -> list[LayerKV]:
        if self._memory is None:
            raise RuntimeClosedError("the runtime was closed, and its keys and values are freed")
        return self._memory

    @property
    def is_freed(self) -> bool:
        """True after `free`: nothing can be read or written."""
        return self._memory is None

    def free(self) -> None:
        """Release the memory, whoever has this object; a later use is a RuntimeClosedError."""
        self._memory = None
        self._pages.clear()

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self._num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def cold_bytes_per_token(self) -> int:
        """The same in 8 bits, scales included."""
        return 2 * self._num_layers * self.num_kv_heads * (self.head_dim + 4)

    def move(self, source: Slots, target: Slots) -> None:
        """Copy slots; source and target may overlap, as all is read before anything is written."""
        src, dst = self._index(source), self._index(target)
        for layer in self._layers:
            layer.k[dst] = layer.k[src]
            layer.v[dst] = layer.v[src]

    def read(self, slots: Slots, out: Tensor | None = None) -> Tensor:
        """[num_layers, 2, n, num_kv_heads, head_dim] copy of the slots' keys and values, in `out`
        on any device or in a new tensor."""
        if out is not None and out.device != self.device:
            return out.copy_(self.read(slots))  # gathered there, and moved in one piece
        index = self._span(slots)
        if out is None:
            shape = (len(self._layers), 2, len(slots), self.num_kv_heads, self.head_dim)
            out = torch.empty(shape, dtype=self.dtype, device=self.device)
        for (k, v), layer in zip(out, self._layers, strict=True):
            k.copy_(layer.k[index])
            v.copy_(layer.v[index])
        return out

    def read_cold(self, slots: Slots) -> Tensor:
        """The same of 8-bit slots, in float32."""
        index = self._index(slots)
        pairs = []
        for kv in self._layers:
            if kv.k_int8 is None or kv.v_int8 is None or kv.k_scale is None or kv.v_scale is None:
                raise ParameterError("this cache has no 8-bit slots; set num_cold_slots")
            k, v = kv.k_int8[index].float(), kv.v_int8[index].float()
            scales = (kv.k_scale[index].unsqueeze(-1), kv.v_scale[index].unsqueeze(-1))
            pairs.append(torch.stack((k * scales[0], v * scales[1])))
        return torch.stack(pairs)

    def is_written(self, slots: Slots) -> NDArray[np.bool_]:
        """[n], False for slots that are still zeros, or were poisoned when they were freed.

        Checks the keys of one head in the first and the last layer.
        """
        index = self._index(slots)
        rows = torch.cat([kv.k[index, 0] for kv in (self._layers[0], self._layers[-1])], dim=1)
        found: NDArray[np.bool_] = (rows.isfinite().all(1) & rows.any(1)).cpu().numpy()
        return found

    def write(self, slots: Slots, data: Tensor) -> None:
        """Store the result of `read` for as many slots."""
        index = self._span(slots)
        shape = (len(self._layers), 2, len(slots), self.num_kv_heads, self.head_dim)
        if tuple(data.shape) != shape:
            raise ParameterError(f"KV data has shape {tuple(data.shape)}, expected {shape}")
        for layer, (k, v) in zip(self._layers, data.to(self.device, self.dtype), strict=True):
            layer.k[index] = k
            layer.v[index] = v

    def quantize(self, source: Slots, target: Slots) -> None:
        """Store exact slots `source` in 8 bits at cold slots `target`, symmetric around 0.

        A part of the tokens at a time: a long node takes no more memory than a short one.
        """
        size = max(1, MAX_FLOATS // (self.num_kv_heads * self.head_dim))
        for start in range(0, len(source), size):
            part = slice(start, start + size)
            self._quantize(self._index(source[part]), self._index(target[part]))

    def _quantize(self, src: Tensor, dst: Tensor) -> None:
        for layer in self._layers:
            for exact, plane, scales in (
                (layer.k, layer.k_int8, layer.k_scale),
                (layer.v, layer.v_int8, layer.v_scale),
            ):
                if plane is None or scales is None:
                    raise ParameterError("this cache has no 8-bit slots; set num_cold_slots")
                plane[dst], scales[dst] = quantize_tokens(exact[src])

    def poison(self, slots: Slots) -> None:
        """Fill freed slots with NaN (debug mode): a step that still reads them shows at once."""
        index = self._index(slots)
        for layer in self._layers:
            layer.k[index] = float("nan")
            layer.v[index] = float("nan")

    def give_back(self, runs: Iterable[tuple[int, int]]) -> None:
        """Reset slots [start, stop) to zeros; their whole pages take no memory until written."""
        if not hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            return
        size, page = self.num_kv_heads * self.head_dim * self.dtype.itemsize, mmap.PAGESIZE
        inside = [(-(-start * size // page) * page, stop * size // page * page)
                  for start, stop in runs]  # fmt: skip
        with contextlib.suppress(OSError):  # locked memory cannot be returned
            for pages in self._pages:
                for begin, end in inside:
                    if begin < end:
                        pages.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def _new_layer(self) -> LayerKV:
        shape = (self.num_slots, self.num_kv_heads, self.head_dim)
        (k, k_pages), (v, v_pages) = (lazy_zeros(shape, self.dtype, self.device) for _ in range(2))
        self._pages += [pages for pages in (k_pages, v_pages) if pages is not None]
        if not self.num_cold_slots:
            return LayerKV(k, v)
        cold = (self.num_cold_slots, self.num_kv_heads, self.head_dim)
        planes = (lazy_zeros(cold, torch.int8, self.device)[0] for _ in range(2))
        scales = (lazy_zeros(cold[:2], torch.float32, self.device)[0] for _ in range(2))
        return LayerKV(k, v, *planes, *scales)

    def _span(self, slots: Slots) -> Tensor | slice:
        """An index of slots; a slice where they are one run, which is copied faster."""
        first = int(slots[0]) if len(slots) else 0
        if np.array_equal(slots, np.arange(first, first + len(slots))):
            return slice(first, first + len(slots))
        return self._index(slots)

    def _index(self, slots: Slots) -> Tensor:
        return torch.from_numpy(np.asarray(slots, np.int64)).to(self.device)


def quantize_tokens(values: Tensor) -> tuple[Tensor, Tensor]:
    """[n, num_kv_heads, head_dim] as int8 of that shape and float32 scales [n, num_kv_heads]."""
    scales = values.abs().amax(dim=-1).float() / 127  # both exact in the values' own dtype
    steps = values / scales.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)
    return steps.round_().to(torch.int8), scales


def lazy_zeros(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, mmap.mmap | None]:
    """Zeros that take no memory until they are written, and their mapping, if there is one.

    torch.zeros writes them at once on a CPU: 4 GB of cache took 5 s and 4 GB. A mapping has pages
    of zeros that the system backs when they are first touched. np.zeros has them too, but in huge
    pages: up to 2 MB a tensor more than is written, for no speed (100 MB with SmolLM2).
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device), None
    num_bytes = math.prod(shape) * dtype.itemsize
    pages = None
    if hasattr(mmap, "MAP_PRIVATE"):
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE)
        zeros = np.frombuffer(pages, np.uint8)
    else:
        zeros = np.zeros(num_bytes, np.uint8)
    return torch.from_numpy(zeros).view(dtype).view(shape), pages
