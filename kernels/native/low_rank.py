"""What adapters add to the products of a native step: the C side of low_rank.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.native.library import Float, Long, Pointer

PLACES = ("qkv", "o", "gate_up", "down")  # products of a layer, in the library's order


class LowRankPair(NamedTuple):
    """b a x, added to a product from a column on. a: [rank, in], b: [rank, out], float32."""

    a: Tensor
    b: Tensor
    column: int = 0


class _Pair(ctypes.Structure):
    _fields_ = [("a", Pointer), ("b", Pointer), ("rank", Long), ("inner", Long), ("out", Long),
                ("column", Long)]  # fmt: skip


class _Variant(ctypes.Structure):
    _fields_ = [("pairs", Pointer), ("starts", Pointer), ("scale", Float), ("unused", Float)]


class _Adapters(ctypes.Structure):
    _fields_ = [("variants", Pointer), ("rows", Pointer), ("ends", Pointer), ("count", Long)]


class NativeVariant:
    """One way of using an adapter: its pairs by layer and place, and a scale.

    Args:
        places: pairs of each product, 4 a layer in the order of PLACES; none where it adds nothing.
    """

    def __init__(self, places: Sequence[Sequence[LowRankPair]], scale: float) -> None:
        pairs = [pair for place in places for pair in place]
        self._kept = [(pair.a.contiguous(), pair.b.contiguous()) for pair in pairs]
        self._pairs = (_Pair * max(1, len(pairs)))(
            *(_Pair(a.data_ptr(), b.data_ptr(), *a.shape, b.shape[1], pair.column)
              for (a, b), pair in zip(self._kept, pairs, strict=True))
        )  # fmt: skip
        self._starts = np.array([*accumulate(map(len, places), initial=0)], np.int32)
        self.struct = _Variant(
            ctypes.addressof(self._pairs), self._starts.ctypes.data, scale, 0.0
        )  # fmt: skip


class NativeAdapters:
    """The rows of one step that each variant adds to; rows ascend, int32."""

    def __init__(self, uses: Sequence[tuple[NativeVariant, NDArray[np.int32]]]) -> None:
        rows = [np.ascontiguousarray(each, np.int32) for _, each in uses]
        self._variants = (_Variant * len(uses))(*(variant.struct for variant, _ in uses))
        self._rows = np.concatenate(rows)
        self._ends = np.array([*accumulate(map(len, rows))], np.int32)
        self._kept: list[Any] = [variant for variant, _ in uses]
        self._struct = _Adapters(
            ctypes.addressof(self._variants), self._rows.ctypes.data, self._ends.ctypes.data,
            len(uses),
        )  # fmt: skip

    @property
    def address(self) -> int:
        """The structure that a step takes, valid as long as this object."""
        return ctypes.addressof(self._struct)
