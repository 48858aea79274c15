"""Token masks of constrained generations, computed on other threads while the model runs."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from radixlang.runtime.requests.generate_request import GenerateJob
from radixlang.runtime.scheduling.sequence import TokenSequence

if TYPE_CHECKING:
    from radixlang.runtime.constraints.mask_worker import MaskWorker


class Masks:
    """Starts the masks of a step before its forward pass and returns their errors after it.

    The thread starts with the first constraint; a runtime without constraints has none.
    """

    def __init__(self) -> None:
        self._worker: MaskWorker | None = None
        self._jobs: list[GenerateJob] = []
        self._running: Future[list[BaseException | None]] | None = None

    def submit(self, sequences: list[TokenSequence]) -> None:
        """Start computing the masks for sampling these sequences."""
        jobs = dict.fromkeys(each.job for each in sequences)  # one may have two sequences
        self._jobs = [
            job
            for job in jobs
            if isinstance(job, GenerateJob) and job.matcher is not None and job.ended is None
        ]
        if not self._jobs:
            return
        if self._worker is None:
            from radixlang.runtime.constraints.mask_worker import MaskWorker

            self._worker = MaskWorker()
        matchers = [job.matcher for job in self._jobs if job.matcher is not None]
        for job in self._jobs:
            job.look_ahead()
            matchers += job.ahead
        self._running = self._worker.submit(matchers)

    def collect(self) -> list[tuple[GenerateJob, BaseException]]:
        """Wait for the masks; returns the jobs whose constraint allows no token, with the errors.

        A dead end after a token of a draft only shortens the draft; it is an error when reached.
        """
        running, self._running = self._running, None
        if running is None:
            return []
        errors = running.result()
        errors_ahead = iter(errors[len(self._jobs) :])
        for job in self._jobs:
            ends = [next(errors_ahead) is not None or matcher.is_finished for matcher in job.ahead]
            job.shorten_draft([*ends, True].index(True))
        pairs = zip(self._jobs, errors[: len(self._jobs)], strict=True)
        return [(job, error) for job, error in pairs if error is not None]

    def close(self) -> None:
        """End the thread."""
        if self._worker is not None:
            self._worker.close()
