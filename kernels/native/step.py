"""What a native step takes from the pool of a batch: its C side, kept with it."""

from __future__ import annotations

import ctypes
from typing import TypeAlias
from weakref import WeakKeyDictionary

from radixlang.kernels.layer_kv import KVLayers
from radixlang.kernels.native.attention import NativeKV, _Layer

Pools: TypeAlias = "ctypes.Array[_Layer]"  # of the pools' addresses


class NativePools:
    """The addresses of the pools in use, one C structure a layer."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[KVLayers, Pools] = WeakKeyDictionary()

    def of(self, kv: KVLayers, num_layers: int) -> Pools:
        """The layers of `kv`, whose kv[i] is a LayerKV. A list has its made at every call."""
        if isinstance(kv, list):
            return _structures(kv, num_layers)
        found = self._made.get(kv)
        if found is None:
            found = self._made[kv] = _structures(kv, num_layers)
        return found


def _structures(kv: KVLayers, num_layers: int) -> Pools:
    layers = [NativeKV(kv[index]).struct for index in range(num_layers)]
    return (type(layers[0]) * num_layers)(*layers)
