"""The requests of all branches: starts, finishes and fails them, and answers their callers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from radixlang.errors import CancelledError, ConstraintError, DeadlineError
from radixlang.protocol import Generation
from radixlang.reply import AnyFuture
from radixlang.runtime.engine.deadlines import RequestDeadlines
from radixlang.runtime.engine.output_checks import Verdicts
from radixlang.runtime.metrics.stats import Counters
from radixlang.runtime.requests.branch_state import (
    BranchState,
    ForkInto,
    Generate,
    Operation,
    Pair,
    Release,
    TakePart,
    futures_of,
    pair_of,
)
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
        self._deadlines = RequestDeadlines()
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

    def queue(self, state: BranchState, operation: Operation) -> None:
        """Take an operation of a branch; one of a pair is queued on both branches at once, so that
        two of them never wait for each other."""
        self._deadlines.watch(state, operation)
        state.operations.append(operation)
        pair = pair_of(operation)
        if pair is not None:
            pair.second.operations.append(TakePart(pair))
            self.advance(pair.second)
        self.advance(state)

    def cancel(self, state: BranchState, future: AnyFuture | None) -> None:
        """Fail a branch and release it, or (with a future) fail it if that has not ended."""
        if future is None:
            state.operations.append(Release())
            self.fail_branch(state, CancelledError(f"{state.name} was cancelled"))
        elif not future.done():
            self.fail_branch(state, CancelledError("the request was cancelled"))

    def call(self, function: Callable[[], object], future: AnyFuture) -> None:
        """Run a function between two steps; its value or error is delivered to the future."""
        try:
            value = function()
        except BaseException as error:
            self.later(partial(future.set_exception, error))
        else:
            self.later(partial(future.set_result, value))

    def expire(self) -> None:
        """Fail the requests that ran past their timeout."""
        for state in self._deadlines.expired():
            self.fail_branch(state, DeadlineError("the request ran past its timeout"))

    def advance(self, *states: BranchState) -> None:
        """Run the operations of branches, and of their new children, as far as possible."""
        stack = [*states]
        while stack:
            at = stack.pop()
            while at.is_born and at.job is None and at.operations and not _waits(at):
                operation = at.operations.popleft()
                try:
                    self._start(at, operation, stack)
                except BaseException as error:
                    at.operations.appendleft(operation)
                    stack += self._set_error(at, error)

    def _start(self, state: BranchState, operation: Operation, stack: list[BranchState]) -> None:
        pair = pair_of(operation)
        if state.error is not None:
            self._refuse(state, operation)
        elif pair is not None:
            self._start_pair(pair, state, operation)
        else:
            job = self.branches.start(state, operation, self.later)
            if job is not None:
                self._add_job(job)
        if isinstance(operation, ForkInto):
            stack += operation.children
        if pair is not None:
            stack.append(pair.other(state))

    def _start_pair(self, pair: Pair, state: BranchState, operation: Operation) -> None:
        """Begin the generation of two branches that have both come to it."""
        if pair.error is not None:
            raise pair.error
        other = pair.other(state)
        asked = operation if isinstance(operation, Generate) else other.operations[0]
        assert isinstance(asked, Generate)
        job = self.branches.start_pair(asked, pair)
        other.operations.popleft()
        self._add_job(job)

    def _refuse(self, state: BranchState, operation: Operation) -> None:
        """Answer an operation of a failed branch with its error."""
        error = state.error
        assert error is not None
        for future in futures_of(operation):
            self._fail_future(future, error)
        pair = pair_of(operation)
        if pair is not None:
            pair.error = pair.error or error
        match operation:
            case ForkInto(children):
                for child in children:
                    child.error, child.is_born = child.error or error, True
            case Release():
                self.branches.release(state)

    def _add_job(self, job: Job) -> None:
        self.counters.num_requests += 1
        for state in job.branches:
            state.job = job
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
        for each in job.branches:
            self.branches.rest(each)
        if job.judge is None:
            _leave(job)
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
        _leave(job)
        self.advance(*job.branches)

    def count_generated(self, job: GenerateJob) -> None:
        """Add the new tokens of a generation to the statistics."""
        generated, forced = job.num_counted
        job.num_counted = now = (job.num_generated, job.num_forced)
        self.counters.num_generated_tokens += now[0] - generated
        self.counters.num_forced_tokens += now[1] - forced

    def fail_job(self, job: Job, error: BaseException) -> None:
        """Fail a job, and its branches with it."""
        if job.branch.job is job:
            self.fail_branch(job.branch, error)

    def fail_branch(self, state: BranchState, error: BaseException) -> None:
        """Fail the running, queued and later operations of a branch."""
        self.advance(state, *self._set_error(state, error))

    def _set_error(self, state: BranchState, error: BaseException) -> list[BranchState]:
        """Fail a branch and its job; returns the other branch of the job, which fails too."""
        job = state.job
        others = [each for each in job.branches if each is not state] if job is not None else []
        if job is not None:
            _leave(job)
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
        for other in others:
            self._set_error(other, error)
        return others

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
            self.advance(*job.branches)


def _leave(job: Job) -> None:
    """Let the branches of a job go on without it."""
    for state in job.branches:
        if state.job is job:
            state.job = None


def _waits(state: BranchState) -> bool:
    """Whether the next operation is of a pair whose other branch has not come to it."""
    pair = pair_of(state.operations[0])
    if pair is None or pair.error is not None or state.error is not None:
        return False
    other = pair.other(state)
    is_there = other.is_born and other.job is None and other.operations
    return not (is_there and pair_of(other.operations[0]) is pair)
