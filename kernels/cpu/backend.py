"""The CPU backend of a plan: schedules of calls, one a window, kept while they hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.cpu.attention import Partials, attend_cpu, attend_packed_cpu
from radixlang.kernels.cpu.schedule import CpuSchedule, build_schedule
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionPlan


class CpuBackend:
    """Attends by calls of torch's own flash kernel; see `AttentionBackend`."""

    name = "cpu"
    spare_bytes = 196_608
    rotates = False
    can_advance = True

    def __init__(self) -> None:
        self._schedules: dict[int | None, CpuSchedule] = {}

    def schedule(self, plan: AttentionPlan, window: int | None) -> CpuSchedule:
        """The calls a layer makes; built at first use, kept until it no longer holds."""
        if window is not None and window > plan.max_position:
            window = None  # nothing is out of reach yet
        schedule = self._schedules.get(window)
        if schedule is None:
            schedule = self._schedules[window] = build_schedule(plan, window)
        return schedule

    def advance(self, plan: AttentionPlan, ranked_slots: NDArray[np.int64]) -> None:
        """Move the schedules on, and drop those that no longer hold."""
        self._schedules = {
            window: schedule
            for window, schedule in self._schedules.items()
            if schedule.advance(ranked_slots)
        }

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer_kv: LayerKV,
        plan: AttentionPlan,
        options: AttentionOptions,
        rotations: Tensor | None,
    ) -> Tensor:
        """See `kernels.attention.attend`; `rotations` is None."""
        layer_kv.write(plan.new_slots, plan.new_run, k, v)
        return attend_cpu(q, layer_kv, plan, self.schedule(plan, options.window), options)

    def attend_packed(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer_kv: LayerKV,
        plan: AttentionPlan,
        options: AttentionOptions,
    ) -> Tensor | Partials:
        """See `kernels.attention.attend_packed`."""
        layer_kv.write(plan.new_slots, plan.new_run, k, v)
        return attend_packed_cpu(q, layer_kv, plan, self.schedule(plan, options.window), options)


def cpu_schedule(plan: AttentionPlan, window: int | None) -> CpuSchedule:
    """The calls that layers with this window make for a plan of the CPU backend."""
    assert isinstance(plan.backend, CpuBackend)
    return plan.backend.schedule(plan, window)
