"""The token budget of a run: reserved before a generation, returned after it."""

from __future__ import annotations

from radixlang.errors import BudgetError
from radixlang.execution.branch_run import Stream


class Budget:
    """The most tokens that all generations of a run may make together; None is no bound.

    A generation reserves its max_tokens, or the rest of the budget, so the bound holds for any
    number of branches at once.
    """

    __slots__ = ("limit", "reserved", "spent", "waiting")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.spent = 0
        self.reserved = 0
        self.waiting: list[Stream] = []

    def reserve(self, stream: Stream, wanted: int) -> int | None:
        """Tokens that a generation may make; None: wait until others return some.

        Raises:
            BudgetError: the budget is spent.
        """
        if self.limit is None:
            return wanted
        left = self.limit - self.spent - self.reserved
        if left > 0:
            granted = min(wanted, left)
            self.reserved += granted
            return granted
        if self.reserved:
            self.waiting.append(stream)
            return None
        raise BudgetError(
            f"the program has generated {self.spent} tokens of max_total_tokens={self.limit}; "
            "raise it, or ask for fewer tokens"
        )

    def settle(self, granted: int, used: int) -> list[Stream]:
        """Count the tokens that a generation used; returns the streams that may try again."""
        self.spent += used
        if self.limit is None:
            return []
        self.reserved -= granted
        waiting, self.waiting = self.waiting, []
        return waiting
