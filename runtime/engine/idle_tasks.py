"""What the engine does for itself: compaction, cold nodes; at rest merged nodes and an audit.

Between steps only what is due and short runs; the rest waits until the engine has had nothing to
do for a second. Then memory that is free goes back to the system, too. An idle engine sleeps: it
wakes once for this, and again only for cold nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from radixlang.runtime.cache.compaction import Compactor
from radixlang.runtime.cache.quantized_tier import ColdTier
from radixlang.runtime.diagnostics.invariants import Violation

REST_S = 1.0  # seconds without a request after which the engine is at rest
MAX_AUDITED_TOKENS = 200_000  # a larger cache is not audited at rest: it would delay what comes

log = logging.getLogger("radixlang.runtime")


class Upkeep:
    """Decides what is due.

    Args:
        compactor: makes hot paths contiguous; None for a runtime without.
        cold: the 8-bit tier, where there is one.
        merge: joins chains of only children in the tree.
        audit: finds violated invariants.
        num_tokens: tokens in the cache now.
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
        """Called between two steps."""
        self.wake()
        if self.compactor is not None and self.compactor.is_overdue():
            self.compactor.compact()

    def wake(self) -> None:
        """Something was done: when nothing follows, the engine is to rest once more."""
        self._is_rested = False

    def wait_s(self) -> float | None:
        """How long an idle engine may sleep before it should call `at_rest`; None: for good."""
        if not self._is_rested:
            return REST_S
        if self.cold is not None and self._num_tokens():
            return max(REST_S, self.cold.idle_s / 2)
        return None

    def at_rest(self) -> None:
        """Called when that time has passed without a request."""
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
