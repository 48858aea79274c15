"""The reference backend of a plan: attention in float64, path by path, for probes."""

from __future__ import annotations

from torch import Tensor

from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.page_limits import PageTallies
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.reference.attention import attend_reference


class ReferenceBackend:
    """Attends by `attend_reference`; see `AttentionBackend`."""

    name = "reference"
    rotates = False
    can_advance = False

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
        return attend_reference(q, layer_kv.k, layer_kv.v, plan.batch, options).to(q.dtype)

    def advance(self, plan: AttentionPlan) -> None:
        """Nothing is kept that could advance."""

    def take_tallies(self) -> PageTallies | None:
        """None: every row reads all of its path."""
        return None
