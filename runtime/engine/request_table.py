"""The requests of all branches: starts, finishes and fails them, and answers their callers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from radixlang.errors import ConstraintError
from radixlang.protocol import Generation
from radixlang.reply import AnyFuture
from radixlang.runtime.engine.output_checks import Verdicts
from radixlang.runtime.metrics.stats import Counters
from radixlang.runtime.requests.branch import BranchState, ForkInto, Operation, Release, futures_of
from radixlang.runtime.requests.branch_table import Branches
from radixlang.runtime.requests.generate_request import GenerateJob
from radixlang.runtime.requests.request import Job, job_of
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.scheduler import Limits, Scheduler
from radixlang.runtime.scheduling.waiting_queue import WaitingQueue

log = logging.getLogger("radixlang.runtime")


class Requests:
    """Runs the operations of branches as far as possible without a step, and ends requests.

    Args:
        post: lets the engine's thread call a function between two steps; from any thread.
    """

    def __init__(
        self,
        memory: Memory,
        branches: Branches,
        counters: Counters,
        waiting: WaitingQueue,
        limits: Limits,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self.memory = memory
        self.branches = branches
        self.counters = counters
        self.scheduler = Scheduler(
            memory,
            waiting,
            limits,
            counters,
            yield_lease=branches.yield_lease,
            fail=lambda sequence, error: self.fail_job(job_of(sequence), error),
        )
        self._verdicts = Verdicts(post)
        self._outbox: list[Callable[[], None]] = []

    def deliver(self) -> None:
        """Resolve futures and call readers; an error of one does not affect the others."""
        outbox, self._outbox = self._outbox, []
        for deliver in outbox:
            try:
                deliver()
            except BaseException:
                log.exception("a callback of a generation failed")

    def close(self) -> None:
        """Wait for running checks of finished texts."""
        self._verdicts.close()

    def later(self, deliver: Callable[[], None]) -> None:
        """Call a function after the statistics of this round are published."""
        self._outbox.append(deliver)

    def advance(self, state: BranchState) -> None:
        """Run the operations of a branch, and of its new children, as far as possible."""
        stack = [state]
        while stack:
            at = stack.pop()
            while at.is_born and at.job is None and at.operations:
                operation = at.operations.popleft()
                try:
                    self._start(at, operation, stack)
                except BaseException as error:
                    at.operations.appendleft(operation)
                    self._set_error(at, error)

    def _start(self, state: BranchState, operation: Operation, stack: list[BranchState]) -> None:
        if state.error is not None:
            self._refuse(state, operation)
        else:
            job = self.branches.start(state, operation, self.later)
            if job is not None:
                self._add_job(job)
        if isinstance(operation, ForkInto):
            stack += operation.children

    def _refuse(self, state: BranchState, operation: Operation) -> None:
        """Answer an operation of a failed branch with its error."""
        error = state.error
        assert error is not None
        for future in futures_of(operation):
            self._fail_future(future, error)
        match operation:
            case ForkInto(children):
                for child in children:
                    child.error, child.is_born = child.error or error, True
            case Release():
                self.branches.release(state)

    def _add_job(self, job: Job) -> None:
        self.counters.num_requests += 1
        job.branch.job = job
        if isinstance(job, GenerateJob):
            if job.generation.is_stopping:
                job.stop()
            self.count_generated(job)
        if job.is_ready:
            self.finish_job(job)
        for sequence in list(job.sequences):
            self.scheduler.add(sequence)

    def finish_job(self, job: Job) -> None:
        """Finish a job that needs no further step: resolve its future, continue the branch."""
        for sequence in list(job.sequences):
            self.scheduler.remove(sequence)
        state = job.branch
        self.memory.events.add("finish", job.num_generated, job.holder)
        state.family.found(job.num_cached)
        job.finish(self.memory, self.later)
        for sequence in list(job.sequences):
            self.memory.detach(sequence)
        job.sequences.clear()
        self.branches.rest(state)
        if job.judge is None:
            state.job = None
        else:
            self._verdicts.submit(job.judge, partial(self._judged, job))

    def _judged(self, job: Job, closing: str, error: BaseException | None) -> None:
        """End a finished job after validation, during which it held its branch."""
        state = job.branch
        if state.job is not job:
            return
        if error is not None:
            self.fail_branch(state, error)
            return
        job.resolve(closing, self.later)
        state.job = None
        self.advance(state)

    def count_generated(self, job: GenerateJob) -> None:
        """Add the new tokens of a generation to the statistics."""
        generated, forced = job.num_counted
        job.num_counted = now = (job.num_generated, job.num_forced)
        self.counters.num_generated_tokens += now[0] - generated
        self.counters.num_forced_tokens += now[1] - forced

    def fail_job(self, job: Job, error: BaseException) -> None:
        """Fail a job, and its branch with it."""
        if job.branch.job is job:
            self.fail_branch(job.branch, error)

    def fail_branch(self, state: BranchState, error: BaseException) -> None:
        """Fail the running, queued and later operations of a branch."""
        self._set_error(state, error)
        self.advance(state)

    def _set_error(self, state: BranchState, error: BaseException) -> None:
        job, state.job = state.job, None
        if job is not None:
            self.counters.num_failed_requests += 1
            self.memory.events.add("fail", job.num_generated, job.holder)
            for sequence in list(job.sequences):
                self.scheduler.remove(sequence)
                self.memory.detach(sequence)
            if isinstance(job, GenerateJob) and not job.is_followed:
                job.tell(self.later)  # text that was held back
            self._fail_future(job.future, error)
        self.branches.fail(state, error)
        # A branch that is not born yet fails at once too; its fork then skips it.
        state.is_born = True

    def _fail_future(self, future: AnyFuture, error: BaseException) -> None:
        def deliver() -> None:
            if not future.done():
                future.set_exception(error)

        self.later(deliver)

    def stop(self, state: BranchState, generation: Generation) -> None:
        """End a generation that has begun; one that has not begun ends when it begins."""
        job = state.job
        if not isinstance(job, GenerateJob) or job.generation is not generation:
            return
        try:
            job.stop()
        except ConstraintError as error:
            self.fail_job(job, error)
            return
        if job.is_ready:
            self.finish_job(job)
            self.advance(state)
