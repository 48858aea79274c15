"""Kernels are compiled and decode steps captured at the start, so that no request waits for it.

A kernel is compiled for each of its shapes when it is first launched, which takes seconds. So small
steps of every shape run once over slots that nobody owns yet, then a decode step of each bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from radixlang.kernels.gpu.graph_plan import BUCKETS
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.progress import each
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.forward.model_runner import ModelRunner
from radixlang.runtime.models.model import plan_for
from radixlang.runtime.process.device import Device
from radixlang.runtime.runtime_config import RuntimeConfig
from radixlang.runtime.sampling.device_sampler import sample_step
from radixlang.runtime.sampling.row import GREEDY, SamplingRow
from radixlang.sampling_params import SamplingParams

SHARED = 8  # tokens above the branches of a warm-up step
NEW_TOKENS = (3, 6, 12, 24, 40, 150)  # of a branch: tiles of every height, and the one pass


def warm_up(runner: ModelRunner, cache: KVCache, device: Device, config: RuntimeConfig) -> None:
    """Run all that compiles or is captured, under a bar; nothing where no kernel is compiled.

    Memory that runs out ends it early, without harm.
    """
    if device.attention != "triton":
        return
    steps = list(_WarmUp(runner, cache, device, config).steps())
    with device.current(), torch.inference_mode():
        try:
            for step in each(steps, "warming up", len(steps), "step"):
                step()
        except torch.OutOfMemoryError:
            device.give_back()


class _WarmUp:
    """The steps that a runner's model has to have run before its first request."""

    def __init__(
        self, runner: ModelRunner, cache: KVCache, device: Device, config: RuntimeConfig
    ) -> None:
        self._model = runner.model
        self._graphs = runner.graphs
        self._cache = cache
        self._device = device
        self._max_running = config.max_running
        self._deterministic = config.deterministic

    def steps(self) -> Iterator[Callable[[], object]]:
        """Small steps of every kind, the sampler's kernels, then decode steps."""
        cold = (False, True) if self._cache.num_cold_slots >= SHARED else (False,)
        for quantized in cold:
            for num_new in NEW_TOKENS:
                for is_run in (True, False):
                    if self._fits(num_new):
                        batch = _batch(1, num_new, quantized=quantized, is_run=is_run)
                        yield partial(self._forward, batch)
        for kind in _sampled_kinds():
            yield partial(self._sample, kind)
        for size in self._buckets():
            for quantized in cold:
                yield partial(self._decode, _batch(size, 1, quantized=quantized))

    def _buckets(self) -> list[int]:
        """Sizes of decode steps, largest first: smaller graphs then fit into its memory."""
        most = self._max_running
        sizes = [size for size in BUCKETS if size < most] + [min(most, BUCKETS[-1])]
        return [size for size in reversed(sizes) if self._fits(size)]

    def _fits(self, num_new: int) -> bool:
        return SHARED + num_new <= self._cache.num_slots

    def _forward(self, batch: TreeBatch) -> None:
        """One step, run eagerly."""
        plan = plan_for(
            self._model, batch, deterministic=self._deterministic, backend=self._device.attention
        )
        (ids,) = plan.send_rows(np.zeros(plan.num_tokens, np.int64))
        self._model.forward(ids, plan.positions, plan, self._cache)

    def _decode(self, batch: TreeBatch) -> None:
        """One decode step, captured where that is possible."""
        if self._graphs is None:
            self._forward(batch)
            return
        plan = plan_for(
            self._model, batch, deterministic=self._deterministic, backend=self._device.attention
        )
        self._graphs.run(np.zeros(plan.num_tokens, np.int64), plan)

    def _sample(self, rows: list[SamplingRow]) -> None:
        config = self._model.config
        hidden = torch.zeros(
            len(rows), config.hidden_size, dtype=getattr(torch, config.dtype),
            device=self._model.device,
        )  # fmt: skip
        finite = torch.ones(len(rows), dtype=torch.bool, device=self._model.device)
        sample_step(
            hidden, range(len(rows)), rows, self._model.logits, finite, config.vocab_size,
            max_rows=len(rows),
        )  # fmt: skip


def _sampled_kinds() -> list[list[SamplingRow]]:
    """Rows for which the sampler runs different kernels: greedy, drawn, and drawn under a mask."""
    drawn = SamplingRow(SamplingParams(temperature=1.0, top_p=0.9), seed=0, index=0)
    held = SamplingRow(SamplingParams(temperature=1.0), seed=0, index=0, held_back=(0,))
    return [[GREEDY], [drawn], [drawn, held]]


def _batch(
    branches: int, num_new: int, *, quantized: bool = False, is_run: bool = True
) -> TreeBatch:
    """Branches with new tokens below a shared node, over the first slots of the pool."""
    shared = np.arange(SHARED, dtype=np.int32)
    own = SHARED + np.arange(branches * num_new, dtype=np.int32).reshape(branches, num_new)
    return TreeBatch(
        segment_slots=[shared if is_run else shared[::-1].copy(), *own],
        segment_parent=np.array([-1] + [0] * branches, np.int32),
        segment_start=np.array([0] + [SHARED] * branches, np.int32),
        branch_segment=np.arange(1, branches + 1, dtype=np.int32),
        branch_query_start=np.full(branches, SHARED, np.int32),
        branch_num_queries=np.full(branches, num_new, np.int32),
        segment_quantized=np.arange(branches + 1) == 0 if quantized else None,
    )
