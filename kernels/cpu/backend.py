"""The CPU backend of a plan in plain torch: tables of its paths, kept while it advances."""

from __future__ import annotations

from torch import Tensor

from radixlang.kernels.cpu.blocks import attend_blocks
from radixlang.kernels.cpu.pages import PageReading
from radixlang.kernels.cpu.paths import path_groups
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.page_limits import PageTallies
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch


class CpuBackend:
    """Attends by blocks of positions; see `AttentionBackend`."""

    name = "cpu"
    rotates = False
    can_advance = True

    def __init__(self, batch: TreeBatch) -> None:
        self._groups = path_groups(batch)
        self._reading = None if batch.limits is None else PageReading(batch.limits)

    def advance(self, plan: AttentionPlan) -> None:
        """Add the step's slots to the tables."""
        (group,) = self._groups  # of a pure decode
        group.advance(plan.new_slots)

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
        return attend_blocks(q, layer_kv, self._groups, options, self._reading)

    def take_tallies(self) -> PageTallies | None:
        """See `AttentionPlan.take_tallies`."""
        return None if self._reading is None else self._reading.take_tallies()
