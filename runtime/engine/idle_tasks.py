"""Upkeep of the engine: compaction and cold nodes; at rest also merging of nodes and an audit.

Between steps only short tasks that are due run; the others wait until the engine has been idle for
a second. Then free memory is returned to the system, too. An idle engine sleeps: it wakes once for
this, and again only for cold nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from radixlang.runtime.cache.compaction import Compactor
from radixlang.runtime.cache.quantized_tier import ColdTier
from radixlang.runtime.diagnostics.invariants import Violation

REST_S = 1.0  # seconds without a request after which the engine is at rest
MAX_AUDITED_TOKENS = 200_000  # a larger cache is not audited at rest: it would delay requests

log = logging.getLogger("radixlang.runtime")


class Upkeep:
    """Decides which tasks are due, and runs them.

    Args:
        compactor: makes hot paths contiguous; None without compaction.
        cold: the 8-bit tier, or None.
        merge: merges chains of only children in the tree.
        audit: finds violated invariants.
        num_tokens: the current number of tokens in the cache.
        give_back: returns free memory to the system.
    """

    def __init__(
        self,
        compactor: Compactor | None,
        cold: ColdTier | None,
        merge: Callable[[], int],
        audit: Callable[[], list[Violation]],
        num_tokens: Callable[[], int],
        give_back: Callable[[], None],
    ) -> None:
        self.compactor = compactor
        self.cold = cold
        self.violations: list[Violation] = []
        self._merge = merge
        self._audit = audit
        self._num_tokens = num_tokens
        self._give_back = give_back
        self._is_rested = True

    def after_step(self) -> None:
        """Run tasks that are due between two steps."""
        self.wake()
        if self.compactor is not None and self.compactor.is_overdue():
            self.compactor.compact()

    def wake(self) -> None:
        """Note that a command was handled: the engine is to rest again after the next pause."""
        self._is_rested = False

    def wait_s(self) -> float | None:
        """Seconds that an idle engine may sleep before it calls `at_rest`; None: no limit."""
        if not self._is_rested:
            return REST_S
        if self.cold is not None and self._num_tokens():
            return max(REST_S, self.cold.idle_s / 2)
        return None

    def at_rest(self) -> None:
        """Run the tasks of an engine at rest, after that time without a request."""
        if self.cold is not None:
            self.cold.quantize_idle()
        if self._is_rested:
            return
        self._is_rested = True
        if self.compactor is not None and self.compactor.is_due():
            self.compactor.compact()
        if self._num_tokens() <= MAX_AUDITED_TOKENS:
            self._merge()
            found = self._audit()
            for violation in found:
                log.error("the cache broke %s", violation)
            self.violations += found
        self._give_back()
