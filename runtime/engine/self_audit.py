"""The engine's audit of itself: the cache's invariants, and leases of holders that are gone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from radixlang.runtime.diagnostics.invariants import (
    Violation,
    audit,
    commits_fit,
    only_computed_is_cached,
    tables_follow_tree,
)
from radixlang.runtime.diagnostics.leaks import cached_slots
from radixlang.runtime.forward.model_runner import ModelRunner
from radixlang.runtime.requests.branch_table import Branches
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.scheduler import Scheduler


class Watch:
    """Audits an engine; in debug mode after every step, with freed slots filled with NaN."""

    def __init__(
        self, memory: Memory, scheduler: Scheduler, runner: ModelRunner, branches: Branches
    ) -> None:
        self._memory = memory
        self._scheduler = scheduler
        self._runner = runner
        self._branches = branches
        self._owned = memory.pool.owned_slots()

    def audit(self) -> list[Violation]:
        """All currently violated invariants."""
        memory, running = self._memory, self._scheduler.running
        private = {f"{each.holder} #{each.arrival}": each.tail for each in running}
        lengths = {each.holder: (each.num_written, len(each.tail)) for each in running}
        return [
            *audit(memory.tree, memory.pool, private),
            *only_computed_is_cached(memory.tree, self._is_computed()),
            *tables_follow_tree(memory.tree, self._runner.tables()),
            *commits_fit(lengths),
            *self._leaked_leases(),
        ]

    def after_step(self) -> list[Violation]:
        """Audit, and fill slots freed since the last call with NaN, so that stale reads show."""
        memory = self._memory
        owned = memory.pool.owned_slots()
        memory.cache.poison(np.setdiff1d(self._owned, owned))
        self._owned = owned
        return self.audit()

    def _is_computed(self) -> NDArray[np.bool_]:
        """[num_slots], for slots of the tree: whether a forward pass has written them."""
        memory = self._memory
        slots = np.concatenate(cached_slots(memory.tree, memory.pool))
        found = np.zeros(memory.pool.num_slots, bool)
        found[slots] = memory.cache.is_freed or memory.cache.is_written(slots)
        return found

    def _leaked_leases(self) -> list[Violation]:
        """16, checked at any time: leases of branches and sequences that are gone."""
        held = {each.lease for each in self._scheduler.running}
        held |= {state.lease for state in self._branches.all()}
        return [
            Violation(16, "idle_is_empty", f"{lease.holder} is gone and leases {lease.node.end}")
            for lease in self._memory.tree.leases
            if lease not in held and lease.holder.startswith(("branch ", "generation ", "scoring "))
        ]
