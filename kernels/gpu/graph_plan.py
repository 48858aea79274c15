"""A plan of fixed size for captured CUDA graphs: the same launches for every decode step.

Capture a decode step once a bucket of batch sizes and a level of work; before each replay, `load`
the step's plan. Padded tokens write no keys and get zeros from attention, so they cannot reach a
real row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.gpu.backend import store_and_attend
from radixlang.kernels.gpu.layer import AttentionLayer
from radixlang.kernels.gpu.plan.device_plan import Capacity, CapacityError, DevicePlan
from radixlang.kernels.gpu.plan.plan_units import launches_of, units_of
from radixlang.kernels.gpu.plan.step_buffer import StepBuffer
from radixlang.kernels.gpu.plan.work_units import UnitPlan, is_masked
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.topology import Topology

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # ids, slots, positions
Kind = tuple[int | None, int]  # a layer's window, and bytes of a query element


def bucket_of(num_tokens: int) -> int:
    """The batch size a graph is captured for; multiples of 256 above the largest bucket."""
    for size in BUCKETS:
        if num_tokens <= size:
            return size
    return -(-num_tokens // 256) * 256


@dataclass(frozen=True, slots=True)
class GraphShape:
    """What a captured step has room for; steps that differ in it take different graphs.

    Each level doubles the room: of slots, which only take memory, and of work (units, partials),
    whose launches are as large as the room. So a workload that grows is captured a few times, and
    two that alternate once each.
    """

    num_tokens: int
    slot_level: int
    work_level: int
    quantized: bool

    @property
    def num_slots(self) -> int:
        """Slots that the units list."""
        return (512 + 128 * self.num_tokens) << self.slot_level

    @property
    def num_units(self) -> int:
        """Units of each launch."""
        return (64 + 2 * self.num_tokens) << self.work_level

    @property
    def num_parts(self) -> int:
        """Partials that are merged."""
        return (64 + 4 * self.num_tokens) << self.work_level

    @classmethod
    def of(cls, num_tokens: int, cuts: Collection[UnitPlan], *, quantized: bool) -> GraphShape:
        """The smallest that all these cuts of one step fit in."""
        base = cls(num_tokens, 0, 0, quantized)
        slots = max(len(cut.slots) for cut in cuts)
        units = max((len(part.units) for cut in cuts for part in cut.lists), default=0)
        parts = max(cut.num_parts for cut in cuts)
        work = max(_doublings(base.num_units, units), _doublings(base.num_parts, parts))
        return cls(num_tokens, _doublings(base.num_slots, slots), work, quantized)


def _doublings(room: int, needed: int) -> int:
    """How often `room` has to be doubled to take `needed`."""
    return (-(-needed // room) - 1).bit_length() if needed > room else 0


class DecodeStep:
    """One decode step cut for a bucket: what a graph's buffers are loaded with.

    Args:
        plan: of a pure decode.
        kinds: the windows and element sizes of the model's layers.
        input_ids: [num_tokens] int64.
    """

    def __init__(
        self, plan: AttentionPlan, kinds: Sequence[Kind], input_ids: NDArray[np.int64]
    ) -> None:
        if not plan.is_decode:
            raise ValueError(
                f"a graph replays decode steps; got {plan.num_tokens} new tokens on "
                f"{plan.num_branches} branches"
            )
        bucket = bucket_of(plan.num_tokens)
        quantized = bool(plan.topology.node_quantized.any())
        self.plan = plan
        self.rows: Rows = (input_ids, plan.host_new_slots, plan.host_positions)
        self.units = {
            kind: units_of(plan, *kind, tile_rows=bucket, quantized=quantized) for kind in kinds
        }
        self.shape = GraphShape.of(bucket, self.units.values(), quantized=quantized)


class GraphPlan:
    """Stands in for an `AttentionPlan` in `attend` while a graph is captured and replayed.

    Device addresses never change. `num_tokens` is the padded batch; `input_ids`, `new_slots` and
    `positions` [num_tokens] int64 are the step's, padded with 0, -1 and 0.
    """

    rotates = True

    def __init__(self, step: DecodeStep) -> None:
        """Heads, device and mode as the step's plan, room as its shape; the step is loaded."""
        like, shape = step.plan, step.shape
        self.shape = shape
        self.num_tokens = shape.num_tokens
        self.num_heads, self.num_kv_heads = like.num_heads, like.num_kv_heads
        self.head_dim, self.group_size = like.head_dim, like.group_size
        self.q_shape = (self.num_tokens, like.num_heads, like.head_dim)
        self.kv_shape = (self.num_tokens, like.num_kv_heads, like.head_dim)
        capacities = {kind: self._capacity(like, kind) for kind in step.units}
        num_words = 6 * self.num_tokens
        sizes = [DevicePlan.size_of(capacity) for capacity in capacities.values()]
        self._buffer = StepBuffer(num_words + sum(sizes), like.device)
        starts = accumulate(sizes[:-1], initial=num_words)
        self._plans = {
            kind: DevicePlan(capacity, self._buffer, start)
            for (kind, capacity), start in zip(capacities.items(), starts, strict=True)
        }
        rows = self._buffer.device[:num_words].view(torch.int64).view(3, self.num_tokens)
        self.input_ids, self.new_slots, self.positions = rows
        self._host_rows = self._buffer.host[:num_words].view(np.int64).reshape(3, -1)
        self._loaded: tuple[Topology, int] | None = None
        self.load(step)

    def _capacity(self, like: AttentionPlan, kind: Kind) -> Capacity:
        shape = self.shape
        return Capacity.for_decode(
            launches_of(like, kind[1], tile_rows=self.num_tokens, quantized=shape.quantized),
            num_tokens=self.num_tokens,
            num_slots=shape.num_slots,
            num_units=shape.num_units,
            num_parts=shape.num_parts,
            masked=is_masked(is_decode=True, window=kind[0], deterministic=like.deterministic),
        )

    def device_plan(self, window: int | None, itemsize: int) -> DevicePlan:
        """The buffer for layers with this window."""
        return self._plans[window, itemsize]

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer_kv: LayerKV,
        options: AttentionOptions,
        rotations: Tensor | None,
    ) -> Tensor:
        """As `AttentionPlan.attend`, over the padded batch."""
        units = self.device_plan(options.window, q.element_size())
        layer = AttentionLayer(self.num_kv_heads, self.group_size, self.head_dim, options)
        return store_and_attend(q, k, v, layer_kv, self.new_slots, units, layer, rotations)

    def load(self, step: DecodeStep) -> None:
        """Take over a decode step for the next replay, in one copy.

        Raises:
            CapacityError: the step is larger than the buffers.
        """
        plan = step.plan
        if step.shape.num_tokens > self.num_tokens:
            raise CapacityError(
                f"this graph replays decode steps of up to {self.num_tokens} branches; got "
                f"{plan.num_tokens}"
            )
        self._loaded = None
        self._buffer.begin()
        self._fill_rows(step.rows)
        for kind, device_plan in self._plans.items():
            device_plan.fill(step.units[kind])
        self._buffer.send()
        self._loaded = (plan.topology, plan.num_steps)

    def follow(self, plan: AttentionPlan, input_ids: NDArray[np.int64]) -> bool:
        """Take over the step after the loaded one with one copy of its rows: units grow where they
        are, in device memory. False if that is not the step after."""
        if self._loaded is None:
            return False
        topology, num_steps = self._loaded
        if plan.topology is not topology or plan.num_steps != num_steps + 1:
            return False
        from radixlang.kernels.gpu.launch import advance

        self._buffer.begin()
        self._fill_rows((input_ids, plan.host_new_slots, plan.host_positions))
        self._buffer.send(6 * self.num_tokens)
        for device_plan in self._plans.values():
            advance(device_plan, self.new_slots)
        self._loaded = (topology, num_steps + 1)
        return True

    def _fill_rows(self, rows: Rows) -> None:
        self._host_rows[:] = ((0,), (-1,), (0,))
        for target, values in zip(self._host_rows, rows, strict=True):
            target[: len(values)] = values
