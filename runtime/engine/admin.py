"""What callers ask of the engine between two steps, and the picture of it that they read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from radixlang.runtime.cache.radix_tree import Namespace
from radixlang.runtime.metrics.stats import Counters, RuntimeStats
from radixlang.runtime.models.model import CausalModel
from radixlang.runtime.requests.score_request import ScoreJob
from radixlang.runtime.scheduling.sequence import TokenIds

if TYPE_CHECKING:
    from radixlang.runtime.engine.engine import EngineCore


def picture(core: EngineCore) -> Callable[[], RuntimeStats]:
    """What makes the statistics of now, for who wants them; the peak of memory is kept up."""
    memory, counters, scheduler = core.memory, core.counters, core.scheduler
    held = memory.held_bytes(scheduler.running)
    if held > counters.peak_bytes:
        counters.peak_bytes = held
    return partial(
        RuntimeStats,
        num_prompt_tokens=counters.num_cached_tokens + counters.num_computed_tokens,
        num_cached_tokens=counters.num_cached_tokens,
        num_computed_tokens=counters.num_computed_tokens,
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
        num_branches=len(core.branches),
        num_tree_tokens=memory.tree.num_cached_tokens,
        num_protected_tokens=memory.tree.num_protected_tokens,
        num_quantized_tokens=memory.num_cold,
        num_pinned_tokens=core.pins.num_pinned_tokens,
        kv_bytes_used=held,
        kv_bytes_peak=counters.peak_bytes,
        kv_bytes_total=memory.total_bytes,
        num_pages_total=memory.pool.num_pages,
        num_pages_free=memory.pool.num_free_pages,
    )


def reset_counters(core: EngineCore) -> None:
    """Start counting anew; the peak starts at what is held now."""
    held = core.memory.held_bytes(core.scheduler.running)
    fresh = Counters(peak_bytes=held, evicted_before=core.memory.tree.num_evicted_tokens)
    for name in Counters.__slots__:
        setattr(core.counters, name, getattr(fresh, name))
    core.profile.reset()


def flush(core: EngineCore) -> int:
    """Drop all that no lease holds; returns the number of tokens."""
    core.memory.ends.clear()
    core.branches.ngrams.clear()
    core.upkeep.wake()
    return core.memory.tree.clear()


def pin(core: EngineCore, name: str, namespace: Namespace, tokens: TokenIds) -> int:
    """Keep a cached prefix; returns its length, 0 where the cap on pins leaves no room."""
    match = core.memory.tree.match(core.branches.current(namespace), tokens)
    return match.length if core.pins.pin(name, match.node) else 0


def update_weights(core: EngineCore, model: CausalModel) -> None:
    """Go on with other weights: what was computed with the old ones is never read again.

    Generations keep the tokens they have, and compute their keys and values anew; scorings start
    again, since their numbers must all come from the same weights.
    """
    core.runner.model = model
    core.runner.forget_plan()
    core.memory.ends.clear()
    core.pins.release_all()
    core.branches.weights_version += 1
    for sequence in list(core.scheduler.running):
        core.scheduler.restart(sequence)
    for state in core.branches.all():
        core.branches.renew(state)
        if isinstance(state.job, ScoreJob):
            _score_again(core, state.job)
        elif state.job is not None:
            for sequence in state.job.sequences:
                sequence.namespace = state.namespace
    for namespace in list(core.memory.tree.roots):
        if namespace.weights_version < core.branches.weights_version:
            core.memory.tree.retire(namespace)


def _score_again(core: EngineCore, job: ScoreJob) -> None:
    for sequence in job.sequences:
        core.scheduler.remove(sequence)
    job.restart()
    for sequence in job.sequences:
        core.scheduler.add(sequence)
