"""Counters of the engine, and the immutable statistics that other threads read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

PROFILE_PARTS = ("schedule", "plan", "model", "masks", "sampling", "tree", "text", "other")


@dataclass(frozen=True, slots=True)
class RuntimeStats:
    """Statistics at one moment. Fields can also be read as `stats["num_prompt_tokens"]`.

    Tokens are counted since the last `reset_stats()`; a prompt's tokens are either found in the
    cache or computed, so num_prompt_tokens = num_cached_tokens + num_computed_tokens over the
    prompts that have been prefilled. Tokens computed a second time, after a request was retracted,
    are num_recomputed_tokens and in none of the others. num_disk_tokens came from the disk tier.
    Tokens of drafts are num_draft_tokens; those that were accepted count as generated too.

    KV bytes count every token held once, written slots only. `kv_bytes_peak` is the highest
    value since the last reset.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_disk_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_generated_tokens: int = 0
    num_forced_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_requests: int = 0
    num_failed_requests: int = 0
    num_steps: int = 0
    num_retracted: int = 0
    num_evicted_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_branches: int = 0
    num_tree_tokens: int = 0
    num_protected_tokens: int = 0
    num_pinned_tokens: int = 0
    num_quantized_tokens: int = 0
    kv_bytes_used: int = 0
    kv_bytes_peak: int = 0
    kv_bytes_total: int = 0
    num_pages_total: int = 0
    num_pages_free: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens found in the cache, 0 to 1."""
        return self.num_cached_tokens / max(1, self.num_prompt_tokens)

    def __getitem__(self, name: str) -> float:
        if name not in self.keys():
            raise KeyError(f"no statistic {name!r}; there are {', '.join(self.keys())}")
        found: float = getattr(self, name)
        return found

    def keys(self) -> tuple[str, ...]:
        """Names of all statistics, so that `dict(stats)` works."""
        return (*(each.name for each in fields(self)), "hit_rate")


@dataclass(slots=True)
class Counters:
    """The engine's counters; one thread writes."""

    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_disk_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_generated_tokens: int = 0
    num_forced_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_requests: int = 0
    num_failed_requests: int = 0
    num_steps: int = 0
    num_retracted: int = 0
    evicted_before: int = 0
    peak_bytes: int = 0


@dataclass(slots=True)
class StepProfile:
    """Where the engine's time goes, in seconds by part, always on (two clock reads a part)."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PROFILE_PARTS, 0.0))
    num_steps: int = 0
    _paused: float = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a block; the time of a nested part is not counted twice."""
        outer, self._paused = self._paused, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.seconds[name] += took - self._paused
            self._paused = outer + took

    def report(self) -> dict[str, float]:
        """Seconds by part, and `num_steps`."""
        return {**self.seconds, "num_steps": float(self.num_steps)}

    def reset(self) -> None:
        """Start from zero."""
        self.seconds = dict.fromkeys(PROFILE_PARTS, 0.0)
        self.num_steps = 0
