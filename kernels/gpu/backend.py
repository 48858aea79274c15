"""The Triton backend of a plan: units in device memory, one buffer a window, advanced in place.

Triton is there on Linux only, so launches are imported when one is made.
"""

from __future__ import annotations

from torch import Tensor

from radixlang.kernels.gpu.layer import AttentionLayer
from radixlang.kernels.gpu.plan.device_plan import DevicePlan
from radixlang.kernels.gpu.plan.plan_units import units_of
from radixlang.kernels.gpu.plan.work_units import RESERVE
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.page_limits import PageTallies
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.topology import GRID


class TritonBackend:
    """Attends by the kernels of this package; see `AttentionBackend`."""

    name = "triton"
    rotates = True
    can_advance = True

    def __init__(self) -> None:
        self._device_plans: dict[tuple[int | None, int], DevicePlan] = {}
        self._steps: dict[tuple[int | None, int], int] = {}  # of the plan, when each was current

    def device_plan(self, plan: AttentionPlan, window: int | None, itemsize: int) -> DevicePlan:
        """The units of a layer in device memory, as the plan now stands.

        Built at first use. One that is a step behind is advanced where it is; one that is further
        behind, because a captured graph has taken the steps between, is cut again.
        """
        key = (window, itemsize)
        found, behind = self._device_plans.get(key), plan.num_steps - self._steps.get(key, 0)
        if found is None or behind > 1:
            units = units_of(plan, window, itemsize)
            found = self._device_plans[key] = DevicePlan.alone(units, plan.device)
        elif behind:
            from radixlang.kernels.gpu.launch import advance

            advance(found, plan.new_slots)
        self._steps[key] = plan.num_steps
        return found

    def advance(self, plan: AttentionPlan) -> None:
        """Cut the units again where they have no room to grow; else they follow when asked for."""
        if plan.num_steps == RESERVE or _begins_a_chunk(plan):
            plan.restart()
            self._device_plans.clear()
            self._steps.clear()

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
        """See `kernels.attention.attend`."""
        units = self.device_plan(plan, options.window, q.element_size())
        layer = AttentionLayer(plan.num_kv_heads, plan.group_size, plan.head_dim, options)
        return store_and_attend(q, k, v, layer_kv, plan.new_slots, units, layer, rotations)

    def take_tallies(self) -> PageTallies | None:
        """None: every row reads all of its path."""
        return None


def store_and_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_kv: LayerKV,
    new_slots: Tensor,
    units: DevicePlan,
    layer: AttentionLayer,
    rotations: Tensor | None,
) -> Tensor:
    """Write the new keys and values, rotating q and k first where rotations are given; attend."""
    from radixlang.kernels.gpu import launch

    if rotations is not None:
        q = launch.rotary_append(layer_kv, new_slots, q, k, v, rotations)
    else:
        launch.append(layer_kv, new_slots, k, v)
    return launch.attend_triton(q, layer_kv, units, layer)[0]


def _begins_a_chunk(plan: AttentionPlan) -> bool:
    """Whether tails have grown over the deterministic grid, where a new plan would cut them."""
    return plan.deterministic and not bool((plan.host_positions % GRID).all())


def device_plan(plan: AttentionPlan, window: int | None, itemsize: int) -> DevicePlan:
    """The units of layers with this window for a plan of the Triton backend."""
    assert isinstance(plan.backend, TritonBackend)
    return plan.backend.device_plan(plan, window, itemsize)
