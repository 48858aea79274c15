"""The attention plan: built once a topology, shared by every layer, advanced step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from radixlang.kernels.gpu.tiles import CDNA3, Tile, launches
from radixlang.kernels.plan.topology import GRID, Topology, build_topology, grow, ranges
from radixlang.kernels.plan.tree_batch import TreeBatch, check_batch

if TYPE_CHECKING:
    from radixlang.kernels.cpu.schedule import CpuSchedule
    from radixlang.kernels.gpu.device_plan import DevicePlan
    from radixlang.kernels.plan.work_units import UnitPlan

__all__ = ["AttentionPlan", "TreeBatch", "plan_attention"]

RESERVE = 64  # decode steps that a device plan has room for
CPU_SPARE_BYTES = 196_608  # of keys, which are read while a call begins and ends


def plan_attention(
    batch: TreeBatch,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    deterministic: bool = False,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> AttentionPlan:
    """Check a batch and plan attention over it for every layer of one model.

    `backend` is "cpu" or "triton", by default what suits the device ("triton" on host memory
    needs Triton's interpreter), or "reference": slow, in float64, for probes; it cannot advance.
    With `deterministic`, splits do not depend on the batch: a branch's result has the same bits
    alone and in any company. Raises ValueError where the batch or the heads contradict themselves.
    """
    if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"{num_heads} query heads do not divide among {num_kv_heads} key heads; "
            "num_heads must be a multiple of num_kv_heads"
        )
    if backend not in (None, "cpu", "triton", "reference"):
        raise ValueError(f"backend={backend!r} is neither 'cpu', 'triton' nor 'reference'")
    check_batch(batch)
    backend = backend or ("cpu" if torch.device(device).type == "cpu" else "triton")
    spare_reads = CPU_SPARE_BYTES // (num_kv_heads * head_dim * 4) if backend == "cpu" else 0
    topology = build_topology(batch, deterministic=deterministic, spare_reads=spare_reads)
    return AttentionPlan(
        topology,
        batch,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        deterministic=deterministic,
        device=torch.device(device),
        backend=backend,
    )


class AttentionPlan:
    """What each layer needs to know to attend over one forest.

    Flat rows are the new tokens in branch order; ranked rows are the same, branches depth first.
    One owner: `advance` changes the plan, and nothing else does.
    """

    def __init__(
        self,
        topology: Topology,
        batch: TreeBatch,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        deterministic: bool,
        device: torch.device,
        backend: str,
    ) -> None:
        self.topology = topology
        self.batch = batch  # as it was before any step
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.deterministic = deterministic
        self.device = device
        self._is_on_host = device.type == "cpu"
        self.backend = backend
        self.num_branches = topology.num_branches
        self.num_tokens = topology.num_rows
        self.q_shape = (self.num_tokens, num_heads, head_dim)
        self.packed_shape = (self.num_tokens, self.group_size, num_kv_heads, head_dim)
        self.kv_shape = (self.num_tokens, num_kv_heads, head_dim)
        self._extra: list[NDArray[np.int64]] = []  # by step, the slots of all tails by rank
        self._schedules: dict[int | None, CpuSchedule] = {}
        self._device_plans: dict[tuple[int | None, int], DevicePlan] = {}
        self._set_rows(_new_slots(batch), _positions(batch))
        order = topology.row_permutation()
        self.row_order = None if order is None else torch.from_numpy(order).to(device)
        self.row_inverse = None if self.row_order is None else torch.argsort(self.row_order)

    @property
    def is_decode(self) -> bool:
        """Whether every branch has exactly one new token."""
        return self.num_tokens == self.num_branches

    @property
    def num_steps(self) -> int:
        """Decode steps since the topology was built."""
        return len(self._extra)

    def _grown(self) -> NDArray[np.int32]:
        """What decoding has added to the tails, [num_branches, num_steps] by rank."""
        return np.stack(self._extra, axis=1, dtype=np.int32)

    @property
    def group_size(self) -> int:
        """Query heads that share one key head."""
        return self.num_heads // self.num_kv_heads

    def _set_rows(self, new_slots: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        self.max_position = int(positions.max())
        self.new_slots = torch.from_numpy(new_slots).to(self.device)  # [num_tokens] int64
        self.positions = torch.from_numpy(positions).to(self.device)  # [num_tokens] int64
        self.host_new_slots, self.host_positions = new_slots, positions
        self.new_run = _run_of(new_slots)

    def _move_rows(self, slots: NDArray[np.int64]) -> None:
        self.host_new_slots = slots
        self.new_slots = torch.from_numpy(slots).to(self.device)
        self.new_run = _run_of(slots)
        self.max_position += 1
        self.positions += 1
        if not self._is_on_host:  # where it is, both are the same memory
            self.host_positions += 1

    def tail_slots(self, rank: int) -> NDArray[np.int32]:
        """Slots of the private node of a branch with what decoding has added to it."""
        slots = self.topology.node_slots(int(self.topology.branch_node[rank]))
        if not self.num_steps:
            return slots
        return np.concatenate([slots, [new[rank] for new in self._extra]], dtype=np.int32)

    def advance(self, new_slots: NDArray[np.int32]) -> None:
        """Move a decode plan on by one token a branch: each tail gains a slot, each row a position.

        `new_slots` is [num_branches] in flat order. Raises ValueError for a plan that is not a
        pure decode (build a new plan), or when the number of slots is not the number of branches.
        """
        if self.backend == "reference":
            raise ValueError("a plan for the reference cannot advance; build one for every step")
        if not self.is_decode:
            raise ValueError(
                f"only a pure decode plan can advance; this one has {self.num_tokens} new tokens "
                f"on {self.num_branches} branches, so build a new plan for the next step"
            )
        slots = np.asarray(new_slots, np.int64)
        if slots.shape != (self.num_branches,):
            raise ValueError(
                f"advance needs one slot a branch, [{self.num_branches}]; got shape {slots.shape}"
            )
        ranked = slots if self.row_order is None else slots[self.topology.branch_order]
        self._extra.append(ranked)
        self._move_rows(slots)
        self._schedules = {
            window: schedule
            for window, schedule in self._schedules.items()
            if schedule.advance(ranked)
        }
        self._advance_device_plans()

    def _advance_device_plans(self) -> None:
        if self.backend != "triton":
            return
        if self.num_steps == RESERVE or self._begins_a_chunk():
            self.topology = grow(self.topology, self._grown())
            self._extra.clear()
            self._device_plans.clear()
            return
        from radixlang.kernels.gpu.launch import advance

        for device_plan in self._device_plans.values():
            advance(device_plan, self.new_slots)

    def _begins_a_chunk(self) -> bool:
        """Whether tails have grown over the deterministic grid, where a new plan would cut them."""
        return self.deterministic and not bool((self.host_positions % GRID).all())

    def cpu_schedule(self, window: int | None) -> CpuSchedule:
        """The calls a layer makes on the CPU; built at first use, kept until it no longer holds."""
        if window is not None and window > self.max_position:
            window = None  # nothing is out of reach yet
        schedule = self._schedules.get(window)
        if schedule is None:
            from radixlang.kernels.cpu.schedule import build_schedule

            schedule = self._schedules[window] = build_schedule(self, window)
        return schedule

    def device_plan(self, window: int | None, itemsize: int) -> DevicePlan:
        """The units of a layer in device memory; built at first use, advanced with the plan."""
        found = self._device_plans.get((window, itemsize))
        if found is None:
            from radixlang.kernels.gpu.device_plan import Capacity, DevicePlan

            units = self.units(window, itemsize)
            found = DevicePlan(Capacity.of(units), self.device)
            found.load(units)
            self._device_plans[window, itemsize] = found
        return found

    def launches(
        self, itemsize: int, *, tile_rows: int, quantized: bool
    ) -> tuple[tuple[Tile, bool], ...]:
        """(tile, quantised) of every launch that a decode plan with these tiles can need."""
        return launches(
            self.group_size,
            self.head_dim,
            itemsize=itemsize,
            arch=_device_shape(self.device)[1],
            tile_rows=tile_rows,
            quantized=quantized,
            deterministic=self.deterministic,
        )

    def units(
        self, window: int | None, itemsize: int, *, tile_rows: int = 0, quantized: bool = False
    ) -> UnitPlan:
        """The plan cut for this device; a plan that has advanced is cut as it now stands."""
        from radixlang.kernels.plan.work_units import build_units

        topology = self.topology
        if self.num_steps:
            topology = grow(topology, self._grown())
        num_sms, arch = _device_shape(self.device)
        return build_units(
            topology,
            group_size=self.group_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            window=window,
            deterministic=self.deterministic,
            num_sms=num_sms,
            itemsize=itemsize,
            arch=arch,
            tile_rows=tile_rows,
            quantized=quantized,
        )


def _device_shape(device: torch.device) -> tuple[int, int]:
    """Multiprocessors and compute capability; an H100's where there is no device to ask."""
    if device.type != "cuda":
        return 132, 90
    properties = torch.cuda.get_device_properties(device)
    arch = CDNA3 if torch.version.hip else 10 * properties.major + properties.minor
    return properties.multi_processor_count, arch


def _new_slots(batch: TreeBatch) -> NDArray[np.int64]:
    if len(batch.branch_num_queries) == int(batch.branch_num_queries.sum()):
        slots = [batch.segment_slots[s][-1] for s in batch.branch_segment.tolist()]
        return np.array(slots, dtype=np.int64)
    tails = zip(batch.branch_segment.tolist(), batch.branch_num_queries.tolist(), strict=True)
    return np.concatenate([batch.segment_slots[s][-n:] for s, n in tails]).astype(np.int64)


def _run_of(slots: NDArray[np.int64]) -> slice | None:
    """The slots as a slice where each is the one after the last: a slice is written fastest."""
    first, count = int(slots[0]), len(slots)
    if int(slots[-1]) - first != count - 1 or (count > 2 and (np.diff(slots) != 1).any()):
        return None
    return slice(first, first + count)


def _positions(batch: TreeBatch) -> NDArray[np.int64]:
    starts = batch.branch_query_start.astype(np.int64)
    return ranges(starts, batch.branch_num_queries.astype(np.int64))
