"""What a native step takes from the plan and the pool of a batch: their C sides, kept with them."""

from __future__ import annotations

import ctypes
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from radixlang.kernels.layer_kv import KVLayers
from radixlang.kernels.native.attention import NativeAttentionPlan, NativeKV, _Layer
from radixlang.kernels.native.library import Library
from radixlang.kernels.plan.plan import AttentionPlan


class NativePlans:
    """The native plan of every AttentionPlan that is in use, moved on as it is."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._made: WeakKeyDictionary[AttentionPlan, tuple[NativeAttentionPlan, int]] = (
            WeakKeyDictionary()
        )

    def of(self, plan: AttentionPlan) -> NativeAttentionPlan:
        """The native plan of a plan, as that stands now."""
        found, num_steps = self._made.get(plan) or (self._new(plan), 0)
        for step in range(num_steps, plan.num_steps):
            found.advance(plan.added_slots(step).astype(np.int32))
        self._made[plan] = found, plan.num_steps
        return found

    def _new(self, plan: AttentionPlan) -> NativeAttentionPlan:
        return NativeAttentionPlan(
            self._library,
            plan.batch,
            num_heads=plan.num_heads,
            num_kv_heads=plan.num_kv_heads,
            head_dim=plan.head_dim,
        )


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
