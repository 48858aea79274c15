"""Runs one step's sequences through the model: forest, plan, forward pass.

While the same sequences decode one token each, the plan of the previous step is advanced instead of
built again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import path_of
from radixlang.runtime.adapters.variants import VariantTable
from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.pages.page_pool import Slots
from radixlang.runtime.cache.radix_tree import RadixNode
from radixlang.runtime.forward.cuda_graphs import DecodeGraphs
from radixlang.runtime.forward.step_adapters import StepAdapters
from radixlang.runtime.forward.step_pages import count_pages, page_limits
from radixlang.runtime.metrics.stats import StepProfile
from radixlang.runtime.models.decoder import Decoder
from radixlang.runtime.models.layers.low_rank import AdapterBatch
from radixlang.runtime.models.model import AdaptableModel, CausalModel, plan_for
from radixlang.runtime.process.device import Device, HostDevice
from radixlang.runtime.process.malloc import StepHeap
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.sequence import TokenSequence

Batch = Sequence[tuple[TokenSequence, int]]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The model's output of one step.

    `hidden` is [num_tokens, hidden_size]; rows of sequence i of the batch start at `offsets[i]`.
    `is_finite` [num_tokens] bool, on the device, is False for rows that are NaN or infinite.
    """

    hidden: Tensor
    offsets: list[int]
    is_finite: Tensor


@dataclass(slots=True)
class _Forest:
    """Segments of a TreeBatch while it is built."""

    slots: list[Slots] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    quantized: list[bool] = field(default_factory=list)
    index: dict[RadixNode, int] = field(default_factory=dict)

    def segment_of(self, node: RadixNode) -> int:
        """Index of a node's segment; adds it and those above it if they are missing."""
        missing: list[RadixNode] = []
        at: RadixNode | None = node
        while at is not None and at.parent is not None and at not in self.index:
            missing.append(at)
            at = at.parent
        parent = self.index.get(at, -1) if at is not None else -1
        for each in reversed(missing):
            parent = self.add(each.slots, parent, each.start, each.quantized)
            self.index[each] = parent
        return parent

    def add(self, slots: Slots, parent: int, start: int, quantized: bool = False) -> int:
        """Append a segment; returns its index."""
        self.slots.append(slots)
        self.parent.append(parent)
        self.start.append(start)
        self.quantized.append(quantized)
        return len(self.slots) - 1


def tree_batch(batch: Batch) -> TreeBatch:
    """The forest over which a step's sequences attend."""
    forest = _Forest()
    tails = []
    for sequence, num_new in batch:
        node = sequence.node
        tail = sequence.tail[: sequence.num_written + num_new + len(sequence.draft)]
        tails.append(forest.add(tail, forest.segment_of(node), node.end))
    return TreeBatch(
        segment_slots=forest.slots,
        segment_parent=np.array(forest.parent, np.int32),
        segment_start=np.array(forest.start, np.int32),
        branch_segment=np.array(tails, np.int32),
        branch_query_start=np.array([each.num_computed for each, _ in batch], np.int32),
        branch_num_queries=np.array(_num_rows(batch), np.int32),
        segment_quantized=np.array(forest.quantized) if any(forest.quantized) else None,
    )


def _num_rows(batch: Batch) -> list[int]:
    """Rows that each sequence has in the step: its new tokens and its draft."""
    return [num_new + len(sequence.draft) for sequence, num_new in batch]


class ModelRunner:
    """Owns the model and the plan of the last step.

    Args:
        variants: numbers of what computes the tokens of a path.
        deterministic: a branch has the same bits in any batch, as far as the model can.
        device: where the model is.
        cuda_graphs: on a GPU, decode steps are captured and replayed.
    """

    def __init__(
        self,
        model: CausalModel,
        memory: Memory,
        profile: StepProfile,
        variants: VariantTable,
        *,
        deterministic: bool = False,
        device: Device | None = None,
        cuda_graphs: bool = True,
    ) -> None:
        self._deterministic = deterministic
        self.serve(model)
        self._memory = memory
        self._profile = profile
        self._variants = variants
        self.adapters = StepAdapters(variants)
        self._device = HostDevice() if device is None else device
        self._uses_graphs = cuda_graphs and self._device.attention == "triton"
        self._plan: AttentionPlan | None = None
        self._planned: list[tuple[TokenSequence, RadixNode]] = []
        self._layout = -1
        self.num_plans = 0
        self._graphs: DecodeGraphs | None = None
        self._heap = StepHeap()

    def serve(self, model: CausalModel) -> None:
        """Compute with this model from now on; a deterministic runner makes it batch-invariant if
        it can be."""
        self.model = model
        if self._deterministic and isinstance(model, Decoder):
            self.model = model.with_rows_apart()

    def run(self, batch: Batch) -> StepOutput:
        """Compute pending tokens (at least 1 of each) and drafts of a batch and write their KV."""
        with self._profile.part("plan"):
            counts = _num_rows(batch)
            plan = self._plan_for(batch, counts)
            ids: list[int] = []
            for sequence, num_new in batch:
                ids += sequence.inputs(num_new).tolist()
            input_ids = np.array(ids, np.int64)
        with self._profile.part("model"):
            adapters = self.adapters.of(self.model, batch, counts)
            hidden = self._forward(input_ids, plan, adapters)
            tallies = plan.take_tallies()
            if tallies is not None:
                count_pages(tallies, batch, counts)
            is_finite = hidden.float().sum(dim=1).isfinite()
        if self._device.is_host:
            self._heap.computed(len(ids))
        return StepOutput(hidden, list(accumulate(counts[:-1], initial=0)), is_finite)

    def _forward(
        self, input_ids: NDArray[np.int64], plan: AttentionPlan, adapters: AdapterBatch | None
    ) -> Tensor:
        model, cache = self.model, self._memory.cache
        if adapters is not None:
            assert isinstance(model, AdaptableModel)  # else they could not be bound
            (ids,) = plan.send_rows(input_ids)
            return model.forward(ids, plan.positions, plan, cache, adapters)
        graphs = self.graphs
        if graphs is not None and plan.batch.limits is None:
            hidden = graphs.run(input_ids, plan)
            if hidden is not None:
                return hidden
        (ids,) = plan.send_rows(input_ids)
        return model.forward(ids, plan.positions, plan, cache)

    @property
    def graphs(self) -> DecodeGraphs | None:
        """Captures decode steps of the present model; None where every step runs eagerly."""
        if not self._uses_graphs:
            return None
        if self._graphs is None or self._graphs.model is not self.model:
            self._graphs = DecodeGraphs(self.model, self._memory.cache, self._device.capture)
        return self._graphs

    def forget_plan(self) -> None:
        """Build the next plan from scratch, because slots of a leased node have moved."""
        self._plan = None

    def close(self) -> None:
        """Release graphs and their buffers."""
        self.forget_plan()
        self._graphs = None

    def tables(self) -> dict[str, tuple[Lease, Slots]]:
        """By holder, a lease and the slots that the kept plan reads for it."""
        plan = self._plan
        if plan is None or self._layout != self._memory.tree.layout_version:
            return {}
        found = {}
        for (sequence, node), tail in zip(
            self._planned, plan.batch.branch_segment.tolist(), strict=True
        ):
            if sequence.lease is not None and sequence.node is node:
                slots, _ = path_of(plan.batch, int(plan.batch.segment_parent[tail]))
                found[f"{sequence.holder} #{sequence.arrival}"] = (sequence.lease, slots.numpy())
        return found

    def _plan_for(self, batch: Batch, counts: list[int]) -> AttentionPlan:
        planned = [(sequence, sequence.node) for sequence, _ in batch]
        is_decode = sum(counts) == len(batch)
        layout = self._memory.tree.layout_version
        limits = page_limits(self._variants, batch, counts)
        plan = self._plan
        is_kept = planned == self._planned and layout == self._layout
        if is_decode and is_kept and plan is not None and limits == plan.batch.limits:
            slots = [each.tail.item(each.num_written) for each, _ in planned]
            plan.advance(np.array(slots, np.int64))
            return plan
        self.num_plans += 1
        plan = plan_for(
            self.model,
            replace(tree_batch(batch), limits=limits) if limits else tree_batch(batch),
            deterministic=self._deterministic,
            backend=self._device.attention,
        )
        self._plan = plan if is_decode else None
        self._planned, self._layout = planned, layout
        return plan
