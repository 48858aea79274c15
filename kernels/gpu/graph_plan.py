"""A plan of fixed size for captured CUDA graphs: the same launches for every decode step.

Capture a decode step once a bucket of batch size; before each replay, `load` the step's plan.
Padded tokens write no keys and get zeros from attention, so they cannot reach a real row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from radixlang.kernels.gpu.backend import store_and_attend
from radixlang.kernels.gpu.device_plan import Capacity, CapacityError, DevicePlan
from radixlang.kernels.gpu.layer import AttentionLayer
from radixlang.kernels.gpu.plan_units import launches_of, units_of
from radixlang.kernels.gpu.work_units import UnitPlan
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionPlan

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def bucket_of(num_tokens: int) -> int:
    """The batch size a graph is captured for; multiples of 256 above the largest bucket."""
    for size in BUCKETS:
        if num_tokens <= size:
            return size
    return -(-num_tokens // 256) * 256


class GraphPlan:
    """Stands in for an `AttentionPlan` in `attend` while a graph is captured and replayed.

    Device addresses never change. `num_tokens` is the padded batch; a plan with fewer tokens is
    padded with slot -1 and position 0.
    """

    rotates = True

    def __init__(
        self,
        like: AttentionPlan,
        *,
        num_tokens: int,
        num_slots: int,
        num_units: int,
        num_parts: int,
        quantized: bool = False,
    ) -> None:
        """Heads, device and mode as `like`; the capacities bound what `load` accepts."""
        self.num_tokens = num_tokens
        self.num_heads, self.num_kv_heads = like.num_heads, like.num_kv_heads
        self.head_dim, self.group_size = like.head_dim, like.group_size
        self.q_shape = (num_tokens, like.num_heads, like.head_dim)
        self.kv_shape = (num_tokens, like.num_kv_heads, like.head_dim)
        self.device = like.device
        self.new_slots = torch.full((num_tokens,), -1, dtype=torch.int64, device=like.device)
        self.positions = torch.zeros(num_tokens, dtype=torch.int64, device=like.device)
        self._sizes = (num_slots, num_units, num_parts)
        self._quantized = quantized
        self._plans: dict[tuple[int | None, int], DevicePlan] = {}
        self._like = like
        self.load(like)

    def device_plan(self, window: int | None, itemsize: int) -> DevicePlan:
        """The buffer for layers with this window; made during warm-up, before capture."""
        found = self._plans.get((window, itemsize))
        if found is None:
            units = self._units(self._like, window, itemsize)
            num_slots, num_units, num_parts = self._sizes
            capacity = Capacity.for_decode(
                launches_of(
                    self._like, itemsize, tile_rows=self.num_tokens, quantized=self._quantized
                ),
                num_tokens=self.num_tokens,
                num_slots=num_slots,
                num_units=num_units,
                num_parts=num_parts,
            )
            found = DevicePlan(capacity, self.device)
            found.load(units)
            self._plans[window, itemsize] = found
        return found

    def _units(self, plan: AttentionPlan, window: int | None, itemsize: int) -> UnitPlan:
        return units_of(
            plan, window, itemsize, tile_rows=self.num_tokens, quantized=self._quantized
        )

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

    def load(self, plan: AttentionPlan) -> None:
        """Take over a decode plan for the next replay.

        Raises CapacityError when it is larger than the capacities, or not a pure decode.
        """
        if not plan.is_decode or plan.num_tokens > self.num_tokens:
            raise CapacityError(
                f"this graph replays decode steps of up to {self.num_tokens} branches; got "
                f"{plan.num_tokens} new tokens on {plan.num_branches} branches"
            )
        for (window, itemsize), buffer in self._plans.items():
            buffer.load(self._units(plan, window, itemsize))
        self._like = plan
        slots = np.full(self.num_tokens, -1, dtype=np.int64)
        positions = np.zeros(self.num_tokens, dtype=np.int64)
        slots[: plan.num_tokens] = plan.host_new_slots
        positions[: plan.num_tokens] = plan.host_positions
        self.new_slots.copy_(torch.from_numpy(slots))
        self.positions.copy_(torch.from_numpy(positions))
