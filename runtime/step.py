"""One step of the engine: what runs, what the logits say, what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from radixlang.errors import NumericalError, RadixlangError
from radixlang.runtime.drafts import NO_DRAFT
from radixlang.runtime.generation import GenerateJob, no_token_left
from radixlang.runtime.masks import Masks
from radixlang.runtime.sampler import SamplingRow, sample
from radixlang.runtime.sequence import Sequence

if TYPE_CHECKING:
    from radixlang.protocol import TokenLogprob
    from radixlang.runtime.core import EngineCore

MAX_LOGIT_ROWS = 256  # rows of logits in memory at once


@dataclass(slots=True, eq=False)
class _Progress:
    """One sequence in one step.

    `output` are the rows of the model's output [num_new, hidden] for positions from `start` on;
    for a prompt whose end was remembered, num_new is 0 and the rows are its last. `drafted` are
    those of the draft.
    """

    sequence: Sequence
    num_new: int
    output: Tensor
    start: int
    drafted: Tensor | None = None
    is_finite: bool = True

    @property
    def sampled(self) -> list[Tensor]:
        """The rows that tokens are sampled from: the last, and those of the draft."""
        return [self.output[-1], *(() if self.drafted is None else self.drafted)]

    @property
    def samples(self) -> bool:
        """Whether a token is to be sampled after the last row."""
        sequence, job = self.sequence, self.sequence.job
        is_last = self.start + len(self.output) == sequence.num_tokens
        return self.is_finite and is_last and isinstance(job, GenerateJob) and job.ended is None

    def recorded(self) -> tuple[int, Tensor]:
        """First position and rows whose logits the job wants, the sampled one left out."""
        sequence = self.sequence
        stop = self.start + len(self.output)
        if isinstance(sequence.job, GenerateJob) and stop == sequence.num_tokens:
            stop -= 1
        first = max(sequence.first_logit, self.start)
        return first, self.output[first - self.start : max(first, stop) - self.start]


@dataclass(frozen=True, slots=True)
class _Token:
    """What the sampler said of one generation."""

    token_id: int
    is_finite: bool
    is_allowed: bool
    logprob: TokenLogprob | None


class Step:
    """Runs steps for the engine's core."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._masks = Masks()
        self._vocab_size = core.branches.serving.vocab_size

    @torch.inference_mode()
    def run(self) -> None:
        """Schedule, compute, sample, commit, and hand tokens to their jobs."""
        core, profile = self._core, self._core.profile
        profile.num_steps += 1
        core.counters.num_steps += 1
        with profile.part("schedule"):
            batch = core.scheduler.next_batch()
        self._masks.submit([sequence for sequence, _ in batch])
        work = self._compute(batch)
        with profile.part("masks"):
            for job, error in self._masks.collect():
                core.fail_job(job, error)
        with profile.part("sampling"):
            self._record(work)
            tokens = self._sample([each for each in work if each.samples])
        with profile.part("tree"):
            for each in work:
                self._commit(each)
        with profile.part("text"):
            for each in work:
                self._accept(each, tokens.get(each, []))
            self._end(work)

    def close(self) -> None:
        """End helper threads."""
        self._masks.close()

    def _compute(self, batch: list[tuple[Sequence, int]]) -> list[_Progress]:
        """Run the model over what has pending tokens; the rest has its output already."""
        running = [pair for pair in batch if pair[1]]
        work: list[_Progress] = []
        if running:
            out = self._core.runner.run(running)
            for (sequence, n), at, is_finite in zip(
                running, out.offsets, out.is_finite, strict=True
            ):
                each = _Progress(sequence, n, out.hidden[at : at + n], sequence.num_computed)
                each.is_finite = is_finite
                if num_drafted := len(sequence.draft):
                    each.drafted = out.hidden[at + n : at + n + num_drafted]
                work.append(each)
        for sequence, num_new in batch:
            rows = None if num_new else self._core.memory.end_rows(sequence)
            if rows is not None:
                work.append(_Progress(sequence, 0, rows, sequence.num_tokens - len(rows)))
        return work

    def _record(self, work: list[_Progress]) -> None:
        """Logits of the positions that jobs ask for beside the sampled one, a part at a time."""
        for each in work:
            if not each.is_finite or not each.sequence.is_running:
                continue
            first, rows = each.recorded()
            num_prompt = each.sequence.num_prompt
            for at in range(0, len(rows), MAX_LOGIT_ROWS):
                logits = self._logits(rows[at : at + MAX_LOGIT_ROWS])
                try:
                    each.sequence.job.record(each.sequence, first + at, logits)
                except RadixlangError as error:
                    self._core.fail_job(each.sequence.job, error)
                    break
            if each.sequence.is_running and each.sequence.num_prompt < num_prompt:
                self._shorten(each)

    def _shorten(self, each: _Progress) -> None:
        """A prompt was healed: what was computed of its old end is worth nothing."""
        sequence = each.sequence
        num_rows = sequence.num_prompt - each.start
        each.output, each.num_new = each.output[:num_rows], min(each.num_new, num_rows)
        self._core.memory.retreat(sequence, sequence.num_prompt)

    def _sample(self, work: list[_Progress]) -> dict[_Progress, list[_Token]]:
        """A token for each sampled row; those whose constraint fails here are left out."""
        found: dict[_Progress, list[_Token]] = {}
        rows = [
            (each, hidden, row)
            for each in work
            if (asked := self._rows(each.sequence))
            for hidden, row in zip(each.sampled, asked, strict=True)
        ]
        for start in range(0, len(rows), MAX_LOGIT_ROWS):
            part = rows[start : start + MAX_LOGIT_ROWS]
            logits = self._logits(torch.stack([hidden for _, hidden, _ in part]))
            got = sample(logits, [row for *_, row in part], self._vocab_size)
            told = zip(got.token_ids, got.is_finite, got.is_allowed, got.logprobs, strict=True)
            for (each, *_), token in zip(part, told, strict=True):
                found.setdefault(each, []).append(_Token(*token))
        return found

    def _logits(self, hidden: Tensor) -> Tensor:
        with self._core.profile.part("model"):
            return self._core.runner.model.logits(hidden)

    def _rows(self, sequence: Sequence) -> list[SamplingRow]:
        job = sequence.job
        if not sequence.is_running or not isinstance(job, GenerateJob):
            return []
        try:
            return job.rows()
        except RadixlangError as error:
            self._core.fail_job(job, error)
            return []

    def _commit(self, each: _Progress) -> None:
        """The computed prompt comes into the tree; a bad one never does."""
        core, sequence = self._core, each.sequence
        if not each.is_finite:
            core.fail_job(sequence.job, _not_finite(sequence))
        if not sequence.is_running or not each.num_new:
            return
        was_prefilling = sequence.is_prefilling
        core.memory.wrote(sequence, each.num_new)
        if not was_prefilling:
            return
        core.memory.commit(sequence, min(sequence.num_computed, sequence.num_prompt))
        is_whole = sequence.num_computed == sequence.num_tokens == sequence.num_prompt
        if sequence.job.samples and is_whole:
            core.memory.ends.put(sequence.node, each.output[-2:].clone())
        core.scheduler.committed(sequence)

    def _accept(self, each: _Progress, tokens: list[_Token]) -> None:
        """Give a generation its tokens, and readers what is new."""
        core, sequence = self._core, each.sequence
        job = sequence.job
        if not sequence.is_running or not isinstance(job, GenerateJob):
            return
        try:
            self._accept_tokens(sequence, job, tokens)
        except RadixlangError as error:
            core.fail_job(job, error)
            return
        core.count_generated(job)
        delta = job.tracker.take_delta() if job.ended is None else None
        if delta is not None:
            core.later(lambda: job.generation.push(delta))

    def _accept_tokens(self, sequence: Sequence, job: GenerateJob, tokens: list[_Token]) -> None:
        """Take the sampled tokens as long as the draft foresaw them, and the one after those."""
        draft, sequence.draft = sequence.draft, NO_DRAFT
        num_kept = 0
        for token in tokens:
            if not token.is_finite:
                raise _not_finite(sequence)
            if not token.is_allowed:
                raise no_token_left(job)
            job.accept(token.token_id, token.logprob)
            is_last = job.ended is not None or num_kept == len(draft)
            if is_last or token.token_id != draft[num_kept]:
                break
            num_kept += 1
            self._core.memory.wrote(sequence, 1)
        if len(draft) and job.drafter is not None:
            job.drafter.learn(len(draft), num_kept)
            self._core.counters.num_draft_tokens += len(draft)
            self._core.counters.num_accepted_draft_tokens += num_kept

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
