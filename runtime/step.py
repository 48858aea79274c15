"""One step of the engine: what runs, what the logits say, what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from radixlang.errors import NumericalError, RadixlangError
from radixlang.runtime.generation import GenerateJob, no_token_left
from radixlang.runtime.sampler import Sampled, SamplingRow, sample
from radixlang.runtime.sequence import Sequence

if TYPE_CHECKING:
    from radixlang.runtime.core import EngineCore

MAX_LOGIT_ROWS = 256  # rows of logits in memory at once


@dataclass(slots=True)
class _Progress:
    """One sequence in one step. `output` are its rows of the model's output [num_new, hidden],
    `is_last` tells whether nothing is pending after them."""

    sequence: Sequence
    num_new: int
    output: Tensor
    is_finite: bool = True

    @property
    def is_last(self) -> bool:
        return self.num_new == self.sequence.num_pending

    @property
    def samples(self) -> bool:
        """Whether a token follows from the last row."""
        job = self.sequence.job
        return isinstance(job, GenerateJob) and self.is_last and job.ended is None

    def recorded(self) -> tuple[int, Tensor]:
        """First position and rows whose logits the job wants beside the sampled one."""
        sequence = self.sequence
        first = max(sequence.first_logit, sequence.num_computed)
        last = sequence.num_computed + self.num_new
        last -= isinstance(sequence.job, GenerateJob) and self.is_last
        return first, self.output[first - sequence.num_computed : last - sequence.num_computed]


class Step:
    """Runs steps for the engine's core."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._vocab_size = core.branches.serving.vocab_size

    @torch.inference_mode()
    def run(self) -> None:
        """Schedule, compute, sample, commit, and hand tokens to their jobs."""
        core, profile = self._core, self._core.profile
        profile.num_steps += 1
        core.counters.num_steps += 1
        with profile.part("schedule"):
            batch = core.scheduler.next_batch()
        work = self._compute(batch)
        with profile.part("sampling"):
            self._record(work)
            sampling = [each for each in work if each.is_finite and each.samples]
            sampled = self._sample(sampling)
        with profile.part("tree"):
            for each in work:
                self._commit(each)
        with profile.part("text"):
            for row, each in enumerate(sampling):
                self._accept(each, sampled, row)
            self._end(work)

    def _compute(self, batch: list[tuple[Sequence, int]]) -> list[_Progress]:
        """Run the model over what has pending tokens; the rest has its output already."""
        running = [pair for pair in batch if pair[1]]
        done = []
        for sequence, num_new in batch:
            row = None if num_new else self._core.memory.end_row(sequence)
            if row is not None:
                done.append(_Progress(sequence, 0, row.unsqueeze(0)))
        if not running:
            return done
        out = self._core.runner.run(running)
        work = [
            _Progress(sequence, n, out.hidden[at : at + n], good)
            for (sequence, n), at, good in zip(running, out.offsets, out.is_finite, strict=True)
        ]
        return work + done

    def _record(self, work: list[_Progress]) -> None:
        """Logits of the positions that scorings and forced tokens ask for, some rows at a time."""
        for each in work:
            if not each.is_finite or not each.num_new:
                continue
            first, rows = each.recorded()
            for at in range(0, len(rows), MAX_LOGIT_ROWS):
                logits = self._core.runner.model.logits(rows[at : at + MAX_LOGIT_ROWS])
                each.sequence.job.record(each.sequence, first + at, logits)

    def _sample(self, work: list[_Progress]) -> Sampled:
        ids, finite, allowed, logprobs = [], [], [], []
        for start in range(0, len(work), MAX_LOGIT_ROWS):
            part = work[start : start + MAX_LOGIT_ROWS]
            hidden = torch.stack([each.output[-1] for each in part])
            logits = self._core.runner.model.logits(hidden)
            with self._core.profile.part("masks"):
                rows = [self._row(each.sequence) for each in part]
            got = sample(logits, rows, self._vocab_size)
            ids += got.token_ids
            finite += got.is_finite
            allowed += got.is_allowed
            logprobs += got.logprobs
        return Sampled(ids, finite, allowed, logprobs)

    def _row(self, sequence: Sequence) -> SamplingRow:
        job = sequence.job
        assert isinstance(job, GenerateJob)
        return job.row()

    def _commit(self, each: _Progress) -> None:
        """The computed prompt comes into the tree; a bad one never does."""
        core, sequence = self._core, each.sequence
        if not each.is_finite:
            core.fail_job(sequence.job, _not_finite(sequence))
        if not sequence.is_running or not each.num_new:
            return
        was_prefilling, is_last = sequence.is_prefilling, each.is_last
        core.memory.wrote(sequence, each.num_new)
        if was_prefilling:
            core.memory.commit(sequence, min(sequence.num_computed, sequence.num_prompt))
            if is_last and sequence.job.samples and sequence.num_tokens == sequence.num_prompt:
                core.memory.ends.put(sequence.node, each.output[-1].clone())
            core.scheduler.committed(sequence)

    def _accept(self, each: _Progress, sampled: Sampled, row: int) -> None:
        """Give a generation its token."""
        core, sequence = self._core, each.sequence
        job = sequence.job
        if not sequence.is_running or not isinstance(job, GenerateJob):
            return
        if not sampled.is_finite[row]:
            core.fail_job(job, _not_finite(sequence))
            return
        if not sampled.is_allowed[row]:
            core.fail_job(job, no_token_left(job))
            return
        generated, forced = job.num_generated, job.num_forced
        try:
            job.accept(sampled.token_ids[row], sampled.logprobs[row])
        except RadixlangError as error:
            core.fail_job(job, error)
        core.counters.num_generated_tokens += job.num_generated - generated
        core.counters.num_forced_tokens += job.num_forced - forced
        delta = job.tracker.take_delta() if job.ended is None else None
        if delta is not None:
            core.later(lambda: job.generation.push(delta))

    def _end(self, work: list[_Progress]) -> None:
        """Finish the jobs that have all they need."""
        core = self._core
        for each in work:
            sequence, job = each.sequence, each.sequence.job
            if not sequence.is_running:
                continue
            if not job.samples and not sequence.num_pending:
                core.scheduler.remove(sequence)
                core.memory.detach(sequence)
                for follower in reversed(job.computed(sequence)):
                    core.scheduler.add(follower, first=True)
            if job.is_ready and job.branch.job is job:
                core.finish_job(job)
                core.advance(job.branch)


def _not_finite(sequence: Sequence) -> NumericalError:
    return NumericalError(
        f"the model produced NaN or infinite values for this request, at one of the "
        f"{sequence.num_tokens} tokens of its prompt and generation. Nothing of it was cached. "
        "Load the model with dtype='float32', or check its weights"
    )
