"""Calls that the engine serves between two steps, and its statistics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.cache.pins import ProgramPins
from radixlang.runtime.cache.radix_tree import Namespace
from radixlang.runtime.cache.snapshot import TreeSnapshot, take_snapshot
from radixlang.runtime.cache.tree_changes import TreeChanges
from radixlang.runtime.engine.idle_tasks import Upkeep
from radixlang.runtime.forward.model_runner import ModelRunner
from radixlang.runtime.metrics.stats import Counters, RuntimeStats, StepProfile
from radixlang.runtime.models.model import CausalModel, overwrite_weights
from radixlang.runtime.requests.branch_table import Branches
from radixlang.runtime.requests.score_request import ScoreJob
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.scheduler import Scheduler
from radixlang.runtime.scheduling.sequence import TokenIds


class Admin:
    """Calls served between two steps; every method runs on the engine's thread."""

    def __init__(
        self,
        memory: Memory,
        runner: ModelRunner,
        branches: Branches,
        scheduler: Scheduler,
        pins: ProgramPins,
        upkeep: Upkeep,
        counters: Counters,
        profile: StepProfile,
    ) -> None:
        self._memory = memory
        self._runner = runner
        self._branches = branches
        self._scheduler = scheduler
        self._pins = pins
        self._upkeep = upkeep
        self._counters = counters
        self._profile = profile

    def picture(self) -> Callable[[], RuntimeStats]:
        """A function that makes the current statistics when asked; updates the memory peak."""
        memory, counters, scheduler = self._memory, self._counters, self._scheduler
        held = memory.held_bytes(scheduler.running)
        if held > counters.peak_bytes:
            counters.peak_bytes = held
        return partial(
            RuntimeStats,
            num_prompt_tokens=counters.num_cached_tokens + counters.num_computed_tokens,
            num_cached_tokens=counters.num_cached_tokens,
            num_computed_tokens=counters.num_computed_tokens,
            num_disk_tokens=counters.num_disk_tokens,
            num_recomputed_tokens=counters.num_recomputed_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            num_forced_tokens=counters.num_forced_tokens,
            num_draft_tokens=counters.num_draft_tokens,
            num_accepted_draft_tokens=counters.num_accepted_draft_tokens,
            num_requests=counters.num_requests,
            num_failed_requests=counters.num_failed_requests,
            num_steps=counters.num_steps,
            num_retracted=counters.num_retracted,
            num_evicted_tokens=memory.tree.num_evicted_tokens - counters.evicted_before,
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting,
            num_branches=len(self._branches),
            num_tree_tokens=memory.tree.num_cached_tokens,
            num_protected_tokens=memory.tree.num_protected_tokens,
            num_quantized_tokens=memory.num_cold,
            num_pinned_tokens=self._pins.num_pinned_tokens,
            kv_bytes_used=held,
            kv_bytes_peak=counters.peak_bytes,
            kv_bytes_total=memory.total_bytes,
            num_pages_total=memory.pool.num_pages,
            num_pages_free=memory.pool.num_free_pages,
        )

    def reset_counters(self) -> None:
        """Set the counters to zero; the peak starts at the memory held now."""
        held = self._memory.held_bytes(self._scheduler.running)
        fresh = Counters(peak_bytes=held, evicted_before=self._memory.tree.num_evicted_tokens)
        for name in Counters.__slots__:
            setattr(self._counters, name, getattr(fresh, name))
        self._profile.reset()

    def snapshot(self) -> TreeSnapshot:
        """A copy of the tree's shape; nodes of adapters name them."""
        variants = self._branches.variants
        return take_snapshot(self._memory.tree, variants.label)

    def bind_adapter(self, adapter: LoraAdapter) -> None:
        """Prepare an adapter for the model in use. Raises an AdapterFormatError if it is for
        another model."""
        self._runner.adapters.bind(self._runner.model, adapter)

    def watch_tree(self, changes: TreeChanges) -> None:
        """Note what enters and leaves the tree from here on."""
        self._memory.tree.changes = changes

    def flush(self) -> int:
        """Evict everything without a lease; returns the number of tokens."""
        self._memory.ends.clear()
        self._branches.drafts.clear()
        self._upkeep.wake()
        return self._memory.tree.clear()

    def pin(self, name: str, namespace: Namespace, tokens: TokenIds) -> int:
        """Pin a cached prefix; returns its length, 0 if the cap on pins leaves no room."""
        match = self._memory.tree.match(self._branches.current(namespace), tokens)
        return match.length if self._pins.pin(name, match.node) else 0

    def update_weights(self, model: CausalModel, values: CausalModel | None = None) -> None:
        """Replace the weights by another model's, or (`values`) overwrite this one's where they
        are: keys and values of the old ones are never read again.

        Generations keep their tokens, and compute their keys and values again; scorings start
        again, since their numbers must all come from the same weights.
        """
        if values is not None:
            overwrite_weights(model, values)
        self._runner.serve(model)
        self._runner.forget_plan()
        self._memory.ends.clear()
        self._pins.release_all()
        self._branches.weights_version += 1
        for sequence in list(self._scheduler.running):
            self._scheduler.restart(sequence)
        for state in self._branches.all():
            self._branches.renew(state)
            if isinstance(state.job, ScoreJob):
                self._score_again(state.job)
            elif state.job is not None:
                for sequence in state.job.sequences:
                    sequence.namespace = self._branches.current(sequence.namespace)
        for namespace in list(self._memory.tree.roots):
            if namespace.weights_version < self._branches.weights_version:
                self._memory.tree.retire(namespace)

    def _score_again(self, job: ScoreJob) -> None:
        for sequence in job.sequences:
            self._scheduler.remove(sequence)
        job.restart()
        for sequence in job.sequences:
            self._scheduler.add(sequence)
