"""Decode steps as captured CUDA graphs: one launch a step instead of some hundreds.

A graph replays fixed launches over fixed addresses. So each shape of steps (a bucket of batch
sizes, a level of work) has static buffers, a step is copied into them, and rows beyond the step's
own are padding: they write no keys, and attention gives them zeros. While the same branches decode,
only the rows of a step are copied, and the units of attention grow in device memory.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.gpu.graph_plan import DecodeStep, GraphPlan, GraphShape, Kind
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.models.model import CausalModel

log = logging.getLogger("radixlang.runtime")

Replay = Callable[[], Tensor]  # runs again over the buffers' current content; same tensor each time
Capture = Callable[[Callable[[], Tensor]], Replay]
MAX_GRAPHS = 32  # a graph of a large bucket holds some megabytes of buffers


@dataclass(frozen=True, slots=True)
class _Captured:
    """One shape of steps: its static buffers and the replay over them."""

    plan: GraphPlan
    replay: Replay


class DecodeGraphs:
    """Runs decode steps of one model over one cache, capturing a shape when it is first needed.

    `captures` counts captures; the graphs that were used last are kept. The addresses of weights
    and cache must not change. If a capture fails, for lack of memory or by an operation that cannot
    be captured, a warning is logged once; `is_off` is true from then on and every step runs
    eagerly.

    Args:
        capture: records a function that runs over static buffers; see `Device.capture`.
    """

    def __init__(self, model: CausalModel, cache: KVCache, capture: Capture) -> None:
        self.model = model
        self._cache = cache
        self._capture = capture
        itemsize = cache.dtype.itemsize
        self._kinds: tuple[Kind, ...] = tuple(
            dict.fromkeys((window, itemsize) for window in model.config.windows)
        )
        self._captured: OrderedDict[GraphShape, _Captured] = OrderedDict()
        self._last: _Captured | None = None
        self.captures = 0
        self.is_off = False

    def run(self, input_ids: NDArray[np.int64], plan: AttentionPlan) -> Tensor | None:
        """The model's output [num_tokens, hidden_size], valid until the next step.

        None if the step must run eagerly: it is not a pure decode, or graphs are off.
        """
        if self.is_off or not plan.is_decode:
            return None
        captured = self._last
        if captured is None or not captured.plan.follow(plan, input_ids):
            captured = self._last = self._loaded(DecodeStep(plan, self._kinds, input_ids))
        return None if captured is None else captured.replay()[: plan.num_tokens]

    def _loaded(self, step: DecodeStep) -> _Captured | None:
        """The graph of a step's shape with the step in its buffers."""
        captured = self._captured.get(step.shape)
        if captured is None:
            return self._record_or_turn_off(step)
        self._captured.move_to_end(step.shape)
        captured.plan.load(step)
        return captured

    def _record_or_turn_off(self, step: DecodeStep) -> _Captured | None:
        try:
            captured = self._captured[step.shape] = self._record(step)
        except RuntimeError as error:  # such as out of memory
            self.is_off = True
            self._captured.clear()
            log.warning(
                "CUDA graphs are off: capturing a step of %d branches failed (%s: %s). Decoding "
                "goes on without them, slower for small batches",
                step.shape.num_tokens, type(error).__name__, str(error).partition("\n")[0],
            )  # fmt: skip
            return None
        if len(self._captured) > MAX_GRAPHS:
            self._captured.popitem(last=False)
        return captured

    def _record(self, step: DecodeStep) -> _Captured:
        static = GraphPlan(step)

        def run() -> Tensor:
            return self.model.forward(static.input_ids, static.positions, static, self._cache)

        self.captures += 1
        return _Captured(static, self._capture(run))
