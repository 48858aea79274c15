"""Decode steps as captured CUDA graphs: one launch a step instead of some hundreds.

A graph replays fixed launches over fixed addresses. So a bucket of batch sizes has static buffers
(token ids, a `GraphPlan`, the output), a step is copied into them, and rows beyond the step's own
are padding: they write no keys, and attention gives them zeros. A step that does not fit runs
eagerly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from radixlang.kernels.gpu.device_plan import CapacityError
from radixlang.kernels.gpu.graph_plan import GraphPlan, bucket_of
from radixlang.kernels.gpu.plan_units import units_of
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.models.model import CausalModel

log = logging.getLogger("radixlang.runtime")

Replay = Callable[[], Tensor]  # runs again over the buffers' current content; same tensor each time
Capture = Callable[[Callable[[], Tensor]], Replay]


def capture_cuda(run: Callable[[], Tensor]) -> Replay:
    """Warm up on a side stream, as capture requires, and record one run."""
    here, beside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        for _ in range(2):
            run()
    here.wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    # Capture only this thread's calls: a user's own CUDA work goes on meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = run()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


@dataclass(frozen=True, slots=True)
class _Captured:
    """One bucket: its static buffers and the replay over them."""

    plan: GraphPlan
    input_ids: Tensor  # [bucket] int64
    replay: Replay


class DecodeGraphs:
    """Runs decode steps of one model over one cache, capturing a bucket when it is first needed.

    `captures` counts captures. The addresses of weights and cache must not change. If a capture
    fails, for lack of memory or by an operation that cannot be captured, a warning is logged once;
    `is_off` is true from then on and every step runs eagerly.
    """

    def __init__(self, model: CausalModel, cache: KVCache, capture: Capture = capture_cuda) -> None:
        self.model = model
        self._cache = cache
        self._capture = capture
        self._captured: dict[int, _Captured] = {}
        self.captures = 0
        self.is_off = False

    def run(self, input_ids: Tensor, plan: AttentionPlan) -> Tensor | None:
        """The model's output [num_tokens, hidden_size], valid until the next step.

        None if the step must run eagerly: it is not a pure decode, graphs are off, or it exceeds
        the bucket's buffers, which are then captured again, twice as large.
        """
        if self.is_off or not plan.is_decode:
            return None
        bucket = bucket_of(plan.num_tokens)
        captured = self._captured.get(bucket)
        try:
            if captured is None:
                captured = self._record_or_turn_off(bucket, input_ids, plan)
                if captured is None:
                    return None
            else:
                captured.plan.load(plan)
        except CapacityError:
            del self._captured[bucket]
            return None
        captured.input_ids[: plan.num_tokens] = input_ids
        return captured.replay()[: plan.num_tokens]

    def _record_or_turn_off(
        self, bucket: int, input_ids: Tensor, plan: AttentionPlan
    ) -> _Captured | None:
        try:
            captured = self._captured[bucket] = self._record(bucket, input_ids, plan)
        except RuntimeError as error:  # such as out of memory
            self.is_off = True
            self._captured.clear()
            log.warning(
                "CUDA graphs are off: capturing a step of %d branches failed (%s: %s). Decoding "
                "goes on without them, slower for small batches",
                bucket, type(error).__name__, str(error).partition("\n")[0],
            )  # fmt: skip
            return None
        return captured

    def _record(self, bucket: int, input_ids: Tensor, plan: AttentionPlan) -> _Captured:
        static = _room_for(plan, bucket, self._cache.dtype.itemsize)
        ids = torch.zeros(bucket, dtype=torch.int64, device=input_ids.device)
        ids[: plan.num_tokens] = input_ids

        def run() -> Tensor:
            return self.model.forward(ids, static.positions, static, self._cache)

        self.captures += 1
        return _Captured(static, ids, self._capture(run))


def _room_for(plan: AttentionPlan, bucket: int, itemsize: int) -> GraphPlan:
    """A plan of fixed size with room for about twice what this step needs."""
    units = units_of(plan, None, itemsize)
    scale = 2 * -(-bucket // plan.num_tokens)  # later steps may fill the bucket
    return GraphPlan(
        plan,
        num_tokens=bucket,
        num_slots=scale * len(units.slots),
        num_units=scale * max(len(part.units) for part in units.lists),
        num_parts=scale * max(bucket, units.num_parts),
        quantized=bool(plan.topology.node_quantized.any()),
    )
