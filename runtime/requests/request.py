"""Jobs: requests as the engine runs them. A job ends its future exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from radixlang.reply import AnyFuture
from radixlang.runtime.requests.branch_state import BranchState
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.sequence import PageCount, TokenIds, TokenSequence
from radixlang.runtime.speculative.drafts import NO_DRAFT


def job_of(sequence: TokenSequence) -> Job:
    """The job of a sequence."""
    job = sequence.job
    assert isinstance(job, Job)
    return job


class Job:
    """Base of generations and scorings.

    `sequences` are those that wait or run; `posted_s` and `deadline_s` are monotonic seconds.
    `judge`, if it is set when the job ends, is a slow check off the engine's thread: it raises an
    error of the result, or returns a text that completes it. The future is resolved after that.
    """

    judge: Callable[[], str | None] | None = None

    samples = False  # True if a token is sampled from the last row of logits

    def __init__(self, branch: BranchState, future: AnyFuture, deadline_s: float | None) -> None:
        self.branch = branch
        self.future = future
        self.deadline_s = deadline_s
        self.posted_s = time.monotonic()
        self.sequences: dict[TokenSequence, None] = {}  # in the order in which they began
        self.num_cached = 0
        self.num_computed = 0
        self.pages = PageCount()

    @property
    def branches(self) -> tuple[BranchState, ...]:
        """The branches that wait for its end, its own first."""
        return (self.branch,)

    @property
    def holder(self) -> str:
        """The name of its sequences in the leak scanner and in events."""
        kind = "generation" if self.samples else "scoring"
        return f"{kind} on {self.branch.name}"

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return 0

    @property
    def num_to_write(self) -> int:
        """Most tokens that may still be generated and need keys and values."""
        return 0

    def draft(self) -> tuple[TokenIds, float]:
        """Draft tokens after the pending one, and the chance that one of them is accepted."""
        return NO_DRAFT, 0.0

    @property
    def is_ready(self) -> bool:
        """True if the future can be resolved without another step."""
        raise NotImplementedError

    def finish(self, memory: Memory, later: Callable[[Callable[[], None]], None]) -> None:
        """Give the branch the kept tokens; `later` calls a function that resolves the future."""
        raise NotImplementedError

    def resolve(self, closing: str, later: Callable[[Callable[[], None]], None]) -> None:
        """Resolve the future of a job after validation; `closing` is appended to its text."""
        raise NotImplementedError

    def record(self, sequence: TokenSequence, first: int, logits: Tensor) -> None:
        """Take logits [n, width] of positions first to first + n of a sequence."""
        raise NotImplementedError

    def computed(self, sequence: TokenSequence) -> list[TokenSequence]:
        """Called when all pending tokens of a sequence are computed; returns the next sequences."""
        raise NotImplementedError
