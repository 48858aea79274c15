"""The engine's thread: takes commands, runs steps, resolves futures.

Only this thread uses the tree, the pool, the model and the state of branches. A step: take
commands, admit by the policy, plan, forward, sample under masks, commit tokens to the tree,
publish statistics, resolve futures. With nothing to do it blocks on its queue.

Every future ends. An error in one request fails that request; an error in a step fails the
requests of that step; the engine goes on. If the thread ends all the same, all pending and later
requests fail with the reason.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from queue import Empty
from typing import TypeVar

import torch

from radixlang.errors import (
    RuntimeClosedError,
)
from radixlang.reply import Reply
from radixlang.runtime.cache.compaction import Compactor
from radixlang.runtime.cache.pins import ProgramPins
from radixlang.runtime.diagnostics.invariants import Violation
from radixlang.runtime.engine.admin import Admin
from radixlang.runtime.engine.idle_tasks import Upkeep
from radixlang.runtime.engine.request_table import Requests
from radixlang.runtime.engine.self_audit import Watch
from radixlang.runtime.engine.step import Step
from radixlang.runtime.engine.step_errors import step_error
from radixlang.runtime.forward.model_runner import ModelRunner
from radixlang.runtime.metrics.stats import Counters, RuntimeStats, StepProfile
from radixlang.runtime.process.device import Device
from radixlang.runtime.process.switch_interval import often
from radixlang.runtime.requests.branch_table import Branches
from radixlang.runtime.requests.inbox import Cancel, Command, FunctionCall, Inbox, Post, Stop
from radixlang.runtime.requests.request import job_of
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.read_ahead import POLL_S
from radixlang.runtime.scheduling.scheduler import Limits
from radixlang.runtime.scheduling.waiting_queue import WaitingQueue

log = logging.getLogger("radixlang.runtime")

T = TypeVar("T")


class EngineCore:
    """The engine, run by its thread; other threads use `inbox`, `call`, `stop` and `stats`."""

    def __init__(
        self,
        memory: Memory,
        runner: ModelRunner,
        branches: Branches,
        counters: Counters,
        profile: StepProfile,
        *,
        device: Device,
        limits: Limits,
        max_logit_rows: int,
        order: str,
        max_pinned_tokens: int,
        compaction: bool,
        debug: bool,
    ) -> None:
        self.memory = memory
        self.runner = runner
        self.branches = branches
        self.counters = counters
        self.profile = profile
        self.device = device
        self.debug = debug
        self.violations: list[Violation] = []
        self.pins = ProgramPins(memory.tree, max_pinned_tokens)
        compactor = Compactor(memory.tree, memory.cache, max_tokens=4096) if compaction else None
        if compactor is not None:
            memory.events.count("compact", lambda: compactor.num_moved_tokens)
        self.upkeep = Upkeep(
            compactor,
            memory.cold,
            memory.tree.structure.merge_chains,
            lambda: self.watch.audit(),
            lambda: memory.tree.num_cached_tokens,
            memory.give_back,
        )
        self.requests = Requests(
            memory, branches, counters, WaitingQueue(order), limits, self._post_call
        )
        self.scheduler = self.requests.scheduler
        if memory.disk is not None:
            self.scheduler.use_disk(memory.disk, self._post_call)
        self.watch = Watch(memory, self.scheduler, runner, branches)
        self.admin = Admin(
            memory, runner, branches, self.scheduler, self.pins, self.upkeep, counters, profile
        )
        self._step = Step(
            self.requests,
            runner,
            memory,
            counters,
            profile,
            branches.serving.vocab_size,
            device,
            max_logit_rows,
            self._finish_late,
        )
        self._is_owed = False  # the last round's news are told while the next step runs
        self.inbox = Inbox()
        self._thread: threading.Thread | None = None
        self._after_end = threading.RLock()  # held by calls made after the thread has ended
        self.publish()

    # ---- for other threads

    def call(self, function: Callable[[], T]) -> T:
        """Run a function between two steps and return its value.

        Once the engine's thread has ended, the function runs on the caller's, one at a time.
        """
        if threading.current_thread() is self._thread:
            return function()
        self.inbox.owner.check()
        if not self.is_closed:
            future = Reply[T]()
            self.inbox.put(FunctionCall(function, future))
            try:
                return future.result()
            except FutureCancelled:
                if not future.cancelled():
                    raise  # the function raised it
        with self._after_end:
            return function()

    def _post_call(self, function: Callable[[], None]) -> None:
        self.inbox.put(FunctionCall(function, Future()))

    def stop(self) -> None:
        """Ask the thread to end after the current step."""
        self.inbox.put_stop()

    @property
    def is_here(self) -> bool:
        """False in a process forked from the one with the engine's thread."""
        return self.inbox.owner.is_here

    @property
    def is_closed(self) -> bool:
        """True once the thread has ended."""
        return self.inbox.is_closed

    def closed_error(self) -> RuntimeClosedError:
        """The error of requests after the thread has ended; it says why it ended."""
        return self.inbox.closed_error()

    # ---- the thread

    def run(self) -> None:
        """Serve until stopped."""
        self._thread = threading.current_thread()
        why: BaseException | None = None
        try:
            self.device.bind()
            while self._take_commands():
                with self.profile.part("other"):
                    if not self.scheduler.is_idle:
                        self._run_step()
                    self._is_owed = not (self.device.is_host or self.scheduler.is_idle)
                    if not self._is_owed:
                        self._finish_round()
        except BaseException as error:
            why = error
            log.critical("the engine's thread ends", exc_info=True)
        finally:
            self._close(why)

    def _take_commands(self) -> bool:
        """Handle all queued commands, waiting for one if idle; False if told to stop."""
        is_idle = self.scheduler.is_idle
        try:
            command = self.inbox.take(is_idle, self._wait_s() if is_idle else None)
        except Empty:
            if is_idle:
                self._rest()
            return True
        try:
            while command is not None:
                with self.profile.part("other"):
                    self._handle(command)
                command = self.inbox.take(block=False)
        except Empty:
            return True
        return False

    def _wait_s(self) -> float | None:
        """Seconds that the engine may sleep while no step is due; None: no limit."""
        return POLL_S if self.scheduler.num_read else self.upkeep.wait_s()

    def _rest(self) -> None:
        try:
            if self.scheduler.num_read:
                self.requests.expire()
                self.scheduler.give_up_reading()
            else:
                self.upkeep.at_rest()
        except BaseException:
            log.exception("the upkeep of an idle engine failed")

    def _handle(self, command: Command) -> None:
        try:
            command.hand_to(self.requests)
        except BaseException as error:
            log.exception("a command of the engine failed")
            if isinstance(command, (Post, Cancel, Stop)):
                self.requests.fail_branch(command.state, error)

    def _run_step(self) -> None:
        self.requests.expire()
        self.scheduler.give_up_reading()
        is_too_large = False
        try:
            with often():
                self._step.run()
            self.upkeep.after_step()
        except torch.OutOfMemoryError as error:
            is_too_large = self._step.num_rows > 1
            if not is_too_large:
                log.exception("a step of the engine ran out of memory")
                self._fail_step(error)
        except BaseException as error:
            log.exception("a step of the engine failed")
            self._fail_step(error)
        if is_too_large:  # outside of the handler, whose traceback holds tensors
            self._make_smaller(self._step.num_rows)
        if self.debug:
            self._audit_step()

    def _make_smaller(self, num_rows: int) -> None:
        """Take half of a step's tokens, after one that ran out of memory; it is run again."""
        num = max(1, num_rows // 2)
        log.warning(
            "a step of %d tokens ran out of memory on %s; from now on a step has at most %d. A "
            "smaller kv_bytes leaves more room",
            num_rows, self.runner.model.device, num,
        )  # fmt: skip
        self.scheduler.limits = replace(self.scheduler.limits, max_batch_tokens=num)
        self.runner.forget_plan()
        self.device.give_back()

    def _audit_step(self) -> None:
        try:
            self.violations += self.watch.after_step()
        except BaseException as error:
            log.exception("the audit failed")
            self.violations.append(Violation(0, "audit", f"the audit failed: {error!r}"))

    def _fail_step(self, error: BaseException) -> None:
        """Fail the step's requests and drop their memory, which is in an unknown state."""
        self.runner.forget_plan()
        for job in {job_of(sequence) for sequence in self._step.sequences}:
            self.requests.fail_job(job, step_error(error, self._step.num_rows))

    def _finish_late(self) -> None:
        """Tell the last round's news, if that was left for now: the device computes meanwhile."""
        if self._is_owed:
            self._is_owed = False
            with torch.inference_mode(False):  # callbacks are not a part of the step
                self._finish_round()

    def _finish_round(self) -> None:
        """Publish statistics, then resolve futures."""
        try:
            self.publish()
            self.memory.events.deliver()
        except BaseException:
            log.exception("the statistics of a round could not be published")
        with self.profile.part("text"):
            self.requests.deliver()

    def _close(self, why: BaseException | None) -> None:
        """End every future, then refuse later commands; each step runs even if another fails."""
        closed = RuntimeClosedError("the runtime was closed")
        if why is not None:
            closed = RuntimeClosedError(f"the runtime ended with {why!r}")
            closed.__cause__ = why
        ends: list[Callable[[], None]] = [
            *(partial(self.requests.fail_branch, state, closed) for state in self.branches.all()),
            self._step.close,
            self.requests.close,
            self._finish_round,
            self.runner.close,
            self.memory.save_to_disk,
            self.memory.close,
            self.device.give_back,
        ]
        for end in ends:
            try:
                end()
            except BaseException:
                log.exception("an engine could not end in order")
        self.inbox.close(why)

    # ---- for readers on other threads

    def publish(self) -> None:
        """Replace the statistics that other threads read."""
        self._picture = self.admin.picture()

    @property
    def stats(self) -> RuntimeStats:
        """Statistics as of the last round; for any thread."""
        return self._picture()

    def all_violations(self) -> list[Violation]:
        """Current violations, and those found after every step (debug mode) and at rest."""
        return [*self.violations, *self.upkeep.violations, *self.watch.audit()]
