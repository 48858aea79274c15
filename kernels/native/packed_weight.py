"""What all weights of the library have in common: an address, a product, and their end."""

from __future__ import annotations

import torch
from torch import Tensor

from radixlang.kernels.native.library import Bits, Int, Library, Long, Pointer


class PackedWeight:
    """A weight in the library's memory, which is freed with this object.

    A subclass sets `address`, `out_features`, `in_features` and `num_bytes` when it has packed.

    Args:
        product: name of the library's function that multiplies by such a weight.
    """

    address: int
    out_features: int
    in_features: int
    num_bytes: int

    def __init__(self, library: Library, product: str) -> None:
        self._free = library.function("rl_weight_free", None, Pointer)
        self._checksum = library.function("rl_weight_checksum", Bits, Pointer)
        self._product = library.action(product, Pointer, Pointer, Long, Pointer, Int)

    def _times(self, x: Tensor) -> Tensor:
        """x [num_tokens, in_features], of the kind that the product takes, to [num_tokens,
        out_features] in float32."""
        x = x.contiguous()
        out = torch.empty((x.shape[0], self.out_features))
        threads = torch.get_num_threads()
        self._product(self.address, x.data_ptr(), x.shape[0], out.data_ptr(), threads)
        return out

    @property
    def checksum(self) -> int:
        """64 bits that differ if a bit of the weight does."""
        return int(self._checksum(self.address))

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._free(self.address)
