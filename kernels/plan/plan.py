"""The attention plan: built once a topology, shared by every layer, advanced step by step."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.page_limits import PageTallies
from radixlang.kernels.plan.topology import Topology, build_topology, grow, ranges
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.upload import upload


class AttentionBackend(Protocol):
    """Attends over one plan, and keeps what it has built from it for the layers.

    A plan has a backend of its own, made by `plan_attention`; the plan knows no more of it than
    stands here.
    """

    name: str
    rotates: bool  # whether `attend` takes `rotations`, and rotates q and k itself
    can_advance: bool

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
        """See `kernels.attention.attend`; shapes are checked."""
        ...

    def advance(self, plan: AttentionPlan) -> None:
        """Follow the decode step that the plan has just taken."""
        ...

    def take_tallies(self) -> PageTallies | None:
        """See `AttentionPlan.take_tallies`."""
        ...


class AttentionPlan:
    """What each layer needs to know to attend over one forest.

    Flat rows are the new tokens in branch order. One owner: `advance` changes the plan, and nothing
    else does.
    """

    _rows: tuple[Tensor, Tensor] | None  # slots and positions on the device, once asked for

    def __init__(
        self,
        batch: TreeBatch,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        deterministic: bool,
        device: torch.device,
        backend: AttentionBackend,
    ) -> None:
        self.batch = batch  # as it was before any step
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.deterministic = deterministic
        self.device = device
        self._is_on_host = device.type == "cpu"
        self.backend = backend
        self.num_branches = len(batch.branch_segment)
        self.num_tokens = int(batch.branch_num_queries.sum())
        self.q_shape = (self.num_tokens, num_heads, head_dim)
        self.kv_shape = (self.num_tokens, num_kv_heads, head_dim)
        self._topology: Topology | None = None
        self._extra: list[NDArray[np.int64]] = []  # by step since the topology, slots of all tails
        self._set_rows(_new_slots(batch), _positions(batch))

    @property
    def topology(self) -> Topology:
        """The forest's nodes, for backends that cut it by them; built when first asked for."""
        if self._topology is None:
            self._topology = build_topology(self.batch, deterministic=self.deterministic)
        return self._topology

    @property
    def new_slots(self) -> Tensor:
        """Where the new tokens' keys and values go, [num_tokens] int64 on the device."""
        if self._rows is None:
            self.send_rows()
        assert self._rows is not None
        return self._rows[0]

    @property
    def positions(self) -> Tensor:
        """Positions of the new tokens, [num_tokens] int64 on the device."""
        if self._rows is None:
            self.send_rows()
        assert self._rows is not None
        return self._rows[1]

    def send_rows(self, *more: NDArray[np.int64]) -> list[Tensor]:
        """Bring slots and positions of this step to the device, and other arrays of the step with
        them in the same copy; returns those."""
        if self._is_on_host:
            self._rows = (torch.from_numpy(self.host_new_slots), self._host_positions)
            return [torch.from_numpy(array) for array in more]
        slots, positions, *rest = upload(
            (self.host_new_slots, self.host_positions, *more), self.device
        )
        self._rows = (slots, positions)
        return rest

    @property
    def rotates(self) -> bool:
        """Whether `attend` takes rotations, and rotates q and k itself."""
        return self.backend.rotates

    @property
    def is_decode(self) -> bool:
        """Whether every branch has exactly one new token."""
        return self.num_tokens == self.num_branches

    @property
    def num_steps(self) -> int:
        """Decode steps since the topology was built."""
        return len(self._extra)

    def _grown(self) -> NDArray[np.int32]:
        """What decoding has added to the tails, [num_branches, num_steps], branches depth first."""
        return np.stack(self._extra, axis=1, dtype=np.int32)[self.topology.branch_order]

    @property
    def group_size(self) -> int:
        """Query heads that share one key head."""
        return self.num_heads // self.num_kv_heads

    def _set_rows(self, new_slots: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        self.host_new_slots, self.host_positions = new_slots, positions
        self._host_positions = torch.from_numpy(positions)  # the same memory
        self._rows = None
        self.new_run = _run_of(new_slots)

    def _move_rows(self, slots: NDArray[np.int64]) -> None:
        self.host_new_slots = slots
        self._rows = None
        self.new_run = _run_of(slots)
        self.host_positions += 1

    def advance(self, new_slots: NDArray[np.int32]) -> None:
        """Move a decode plan on by one token a branch: each tail gains a slot, each row a position.

        `new_slots` is [num_branches] in flat order. Raises ValueError for a plan that is not a
        pure decode (build a new plan), for another number of slots than of branches, and for a
        backend that cannot advance.
        """
        if not self.backend.can_advance:
            raise ValueError(
                f"a plan for the {self.backend.name} cannot advance; build one for every step"
            )
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
        self._extra.append(slots)
        self._move_rows(slots)
        self.backend.advance(self)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer_kv: LayerKV,
        options: AttentionOptions,
        rotations: Tensor | None,
    ) -> Tensor:
        """See `kernels.attention.attend`, which checks shapes first."""
        return self.backend.attend(q, k, v, layer_kv, self, options, rotations)

    def take_tallies(self) -> PageTallies | None:
        """What limited rows have read since the last call; None where every row reads all."""
        return self.backend.take_tallies() if self.batch.limits is not None else None

    def current_topology(self) -> Topology:
        """The topology with what decoding has added to the tails."""
        return grow(self.topology, self._grown()) if self.num_steps else self.topology

    def restart(self) -> None:
        """Make what decoding has added part of the topology, as if it had been built now."""
        self._topology = self.current_topology()
        self._extra.clear()


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
