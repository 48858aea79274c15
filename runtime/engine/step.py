"""One step of the engine: schedule, forward pass, sampling, and delivery to requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from radixlang.errors import LogitsError, NumericalError, RadixlangError
from radixlang.runtime.cache.node import as_edge, num_common_tokens
from radixlang.runtime.engine.request_table import Requests
from radixlang.runtime.engine.step_sampling import StepSampler, select_rows
from radixlang.runtime.forward.model_runner import ModelRunner
from radixlang.runtime.metrics.stats import Counters, StepProfile
from radixlang.runtime.process.device import Device
from radixlang.runtime.requests.generate_request import GenerateJob, no_token_left
from radixlang.runtime.requests.mask_step import Masks
from radixlang.runtime.requests.request import job_of
from radixlang.runtime.sampling.row import SamplingRow
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.sequence import TokenSequence
from radixlang.runtime.speculative.drafts import NO_DRAFT

if TYPE_CHECKING:
    from radixlang.protocol import TokenLogprob


@dataclass(slots=True, eq=False)
class _Progress:
    """One sequence in one step.

    Its rows of the step's output [num_rows, hidden] begin at row `at`, for positions from `start`
    on; the rows of its draft follow them. For a prompt whose end was remembered, num_new is 0 and
    the rows are its last. `is_joined`: its one row was held until that of the partner was there.
    """

    sequence: TokenSequence
    num_new: int
    at: int
    num_rows: int
    start: int
    is_finite: bool = True
    is_joined: bool = False

    @property
    def stop(self) -> int:
        """Position after the rows."""
        return self.start + self.num_rows

    @property
    def sampled(self) -> range:
        """The rows from which tokens are sampled: the last, and those of the draft."""
        behind = self.at + self.num_rows
        return range(behind - 1, behind + len(self.sequence.draft))

    def judge(self, is_finite: list[bool]) -> None:
        """Note whether its rows are finite, drafted ones included, by those of the model's rows."""
        self.is_finite = all(is_finite[self.at : self.sampled.stop])

    def recorded(self) -> range:
        """Positions whose logits the job needs, without the sampled one."""
        sequence, stop = self.sequence, self.start + self.num_rows
        if stop == sequence.num_tokens and sequence.job.samples:
            stop -= 1
        return range(max(sequence.first_logit, self.start), stop)


# The sampler's result for one row: id, whether its logits are finite, whether any was allowed, its
# log-probability, the error of its function of logits.
_Token = tuple[int, bool, bool, "TokenLogprob | None", LogitsError | None]


class Step:
    """Runs steps: scheduled sequences through the model and the sampler, tokens to requests.

    Args:
        max_logit_rows: rows of logits in memory at once.
        meanwhile: work on the host that need not wait for a step; called once in each, when all
            is launched and before its tokens are waited for.
    """

    def __init__(
        self,
        requests: Requests,
        runner: ModelRunner,
        memory: Memory,
        counters: Counters,
        profile: StepProfile,
        vocab_size: int,
        device: Device,
        max_logit_rows: int,
        meanwhile: Callable[[], None],
    ) -> None:
        self._requests = requests
        self._scheduler = requests.scheduler
        self._runner = runner
        self._memory = memory
        self._counters = counters
        self._profile = profile
        self._device = device
        self._sampler = StepSampler(device, self._logits, vocab_size, max_logit_rows)
        self._max_logit_rows = max_logit_rows
        self._meanwhile = meanwhile
        self._masks = Masks()
        self.num_rows = 0  # of the current step, drafts included
        self.sequences: list[TokenSequence] = []  # that the current step computes

    @torch.inference_mode()
    def run(self) -> None:
        """Schedule, compute, sample, commit, and pass tokens to their jobs.

        Raises:
            torch.OutOfMemoryError: nothing was committed; the same step may run again, smaller.
        """
        profile = self._profile
        profile.num_steps += 1
        self._counters.num_steps += 1
        self.sequences = list(self._scheduler.running)  # any of them, until it is known
        with profile.part("schedule"):
            batch = self._scheduler.next_batch()
        self.num_rows = sum(max(1, num_new + len(sequence.draft)) for sequence, num_new in batch)
        self.sequences = [sequence for sequence, _ in batch]
        self._masks.submit(self.sequences)
        try:
            hidden, is_finite, work = self._compute(batch)
        except BaseException:
            self._masks.collect()  # they are computed again with the next step
            raise
        with profile.part("masks"):
            for job, error in self._masks.collect():
                self._requests.fail_job(job, error)
        with profile.part("sampling"):
            self._record(hidden, is_finite, work)
            tokens = self._sample(hidden, is_finite, work)
        with profile.part("tree"):
            for each in work:
                self._commit(hidden, each)
        with profile.part("text"):
            for each in work:
                self._accept(each, tokens.get(each, ()))
            self._end(work)

    def close(self) -> None:
        """End helper threads."""
        self._masks.close()

    def _compute(
        self, batch: list[tuple[TokenSequence, int]]
    ) -> tuple[Tensor, Tensor, list[_Progress]]:
        """Run the model over sequences with pending tokens; others have their output already."""
        running = [pair for pair in batch if pair[1]]
        work: list[_Progress] = []
        parts: list[Tensor] = []
        is_finite = torch.empty(0, dtype=torch.bool, device=self._runner.model.device)
        if running:
            out = self._runner.run(running)
            parts.append(out.hidden)
            is_finite = out.is_finite
            for (sequence, n), at in zip(running, out.offsets, strict=True):
                work.append(_Progress(sequence, n, at, n, sequence.num_computed))
        if len(running) < len(batch):
            self._recall([sequence for sequence, num_new in batch if not num_new], work, parts)
        hidden = parts[0] if len(parts) == 1 else torch.cat(parts or [torch.empty(0)])
        return hidden, is_finite, work

    def _recall(
        self, sequences: list[TokenSequence], work: list[_Progress], parts: list[Tensor]
    ) -> None:
        """Add the output of prompts whose ends are remembered."""
        at = sum(map(len, parts))
        for sequence in sequences:
            rows = self._memory.end_rows(sequence)
            if rows is not None:
                start = sequence.num_tokens - len(rows)
                work.append(_Progress(sequence, 0, at, len(rows), start))
                parts.append(rows)
                at += len(rows)

    def _record(self, hidden: Tensor, is_finite: Tensor, work: list[_Progress]) -> None:
        """Pass jobs the logits of further positions than the sampled one.

        Rows of several sequences share one product, up to the most that a part may have.
        """
        recording = [each for each in work if each.recorded()]
        if self._device.is_host or recording:
            _judge(work, is_finite.tolist())  # else they come with the tokens, in one transfer
        parts: list[tuple[_Progress, range]] = []
        num_rows = 0
        for each in recording:
            recorded = each.recorded() if each.is_finite and each.sequence.is_running else range(0)
            while recorded:
                taken = recorded[: self._max_logit_rows - num_rows]
                parts.append((each, taken))
                recorded, num_rows = recorded[len(taken) :], num_rows + len(taken)
                if num_rows == self._max_logit_rows:
                    self._record_parts(hidden, parts)
                    parts, num_rows = [], 0
        if parts:
            self._record_parts(hidden, parts)

    def _record_parts(self, hidden: Tensor, parts: list[tuple[_Progress, range]]) -> None:
        """Compute the logits of positions of several sequences, and pass them to their jobs."""
        index = [each.at + position - each.start for each, taken in parts for position in taken]
        logits = self._logits(select_rows(hidden, index))
        at = 0
        for each, taken in parts:
            rows, at = logits[at : at + len(taken)], at + len(taken)
            sequence = each.sequence
            if not sequence.is_running:  # an earlier part has failed its request
                continue
            num_prompt = sequence.num_prompt
            try:
                job_of(sequence).record(sequence, taken.start, rows)
            except RadixlangError as error:
                self._requests.fail_job(job_of(sequence), error)
                continue
            if sequence.is_running and sequence.num_prompt < num_prompt:
                self._shorten(each)

    def _shorten(self, each: _Progress) -> None:
        """Drop the computed end of a prompt whose last token was replaced by healing."""
        sequence = each.sequence
        each.num_rows = sequence.num_prompt - each.start
        each.num_new = min(each.num_new, each.num_rows)
        self._memory.retreat(sequence, sequence.num_prompt)

    def _sample(
        self, hidden: Tensor, is_finite: Tensor, work: list[_Progress]
    ) -> dict[_Progress, list[_Token]]:
        """Tokens for the sampled rows, without sequences whose constraint fails here."""
        hidden = self._join_pairs(hidden, work)
        asked = [(each, rows) for each in work if (rows := self._rows(each))]
        index = [at for each, _ in asked for at in each.sampled]
        rows = [row for _, rows in asked for row in rows]
        got = self._sampler.sample(hidden, index, rows, is_finite, self._meanwhile)
        _judge(work, got.is_finite)
        tokens, errors = got.sampled, [row.error for row in rows]
        rest = zip(
            tokens.token_ids, tokens.is_finite, tokens.is_allowed, tokens.logprobs, errors,
            strict=True,
        )  # fmt: skip
        return {each: list(islice(rest, len(rows))) for each, rows in asked}

    def _join_pairs(self, hidden: Tensor, work: list[_Progress]) -> Tensor:
        """Hold the last rows of generations from two branches' logits; where both are there, add
        the first branch's to the step's output, to be sampled from."""
        ready: list[GenerateJob] = []
        for each in work:
            job = each.sequence.job
            if not (isinstance(job, GenerateJob) and job.partner and self._samples(each)):
                continue
            if job.partner.hold(each.sequence, hidden[each.sampled.start]):
                ready.append(job)
        rows: list[Tensor] = []
        for at, job in enumerate(ready, len(hidden)):
            assert job.partner is not None
            rows.append(job.partner.row_of(job.sequence))
            start = job.sequence.num_tokens - 1
            work.append(_Progress(job.sequence, 0, at, 1, start, is_joined=True))
        return torch.cat((hidden, torch.stack(rows))) if rows else hidden

    def _samples(self, each: _Progress) -> bool:
        """Whether a token follows the rows of a sequence."""
        sequence, job = each.sequence, each.sequence.job
        is_last = each.stop == sequence.num_tokens and each.is_finite
        is_open = isinstance(job, GenerateJob) and job.ended is None
        return is_last and is_open and sequence.is_running

    def _logits(self, hidden: Tensor) -> Tensor:
        with self._profile.part("model"):
            return self._runner.model.logits(hidden)

    def _rows(self, each: _Progress) -> list[SamplingRow]:
        """The sampler's rows of a sequence; none if no token follows its rows."""
        job = each.sequence.job
        if not (isinstance(job, GenerateJob) and self._samples(each)):
            return []
        if job.partner is not None and not each.is_joined:
            return []  # it is sampled once the other's row is there
        try:
            return job.rows()
        except RadixlangError as error:
            self._requests.fail_job(job, error)
            return []

    def _commit(self, hidden: Tensor, each: _Progress) -> None:
        """Insert the computed prompt into the tree, unless its numbers are not finite."""
        sequence = each.sequence
        if not each.is_finite:
            self._requests.fail_job(job_of(sequence), _not_finite(sequence))
        if not sequence.is_running or not each.num_new:
            return
        was_prefilling = sequence.is_prefilling
        self._memory.wrote(sequence, each.num_new)
        if not was_prefilling:
            return
        self._memory.commit(sequence, min(sequence.num_computed, sequence.num_prompt))
        is_whole = sequence.num_computed == sequence.num_tokens == sequence.num_prompt
        if sequence.job.samples and is_whole:
            stop = each.at + each.num_rows
            self._memory.ends.put(sequence.node, hidden[max(each.at, stop - 2) : stop].clone())
        self._scheduler.committed(sequence)

    def _accept(self, each: _Progress, tokens: Sequence[_Token]) -> None:
        """Pass a generation its tokens, and its readers the new text."""
        sequence = each.sequence
        job = sequence.job
        if not sequence.is_running or not isinstance(job, GenerateJob):
            return
        try:
            self._accept_tokens(sequence, job, tokens)
        except RadixlangError as error:
            self._requests.fail_job(job, error)
            return
        self._requests.count_generated(job)
        if job.is_followed and job.ended is None:
            job.tell(self._requests.later)

    def _accept_tokens(
        self, sequence: TokenSequence, job: GenerateJob, tokens: Sequence[_Token]
    ) -> None:
        """Accept the sampled tokens that agree with the draft, and the one after those."""
        draft, sequence.draft = sequence.draft, NO_DRAFT
        num_kept = 0
        for row, (token_id, is_finite, is_allowed, logprob, error) in enumerate(tokens):
            if row < num_kept:
                continue  # the constraint has forced the token at this position
            if not is_finite:
                raise _not_finite(sequence)
            if error is not None:
                raise error
            if not is_allowed:
                raise no_token_left(job)
            num_before = sequence.num_tokens
            job.accept(token_id, logprob)
            if job.ended is not None or num_kept == len(draft):
                break
            new = sequence.tokens[num_before:]  # with the tokens that a constraint forces after it
            num_same = num_common_tokens(as_edge(new), as_edge(draft[num_kept:]))
            self._memory.wrote(sequence, num_same)
            num_kept += num_same
            if num_same < len(new):
                break
        if len(draft) and job.drafter is not None:
            job.drafter.learn(len(draft), num_kept)
            self._counters.num_draft_tokens += len(draft)
            self._counters.num_accepted_draft_tokens += num_kept

    def _end(self, work: list[_Progress]) -> None:
        """Finish the jobs that need no further step."""
        for each in work:
            sequence, job = each.sequence, job_of(each.sequence)
            if not sequence.is_running:
                continue
            if not job.samples and not sequence.num_pending:
                self._scheduler.remove(sequence)
                self._memory.detach(sequence)
                for follower in reversed(job.computed(sequence)):
                    self._scheduler.add(follower, first=True)
            if job.is_ready and job.branch.job is job:
                self._requests.finish_job(job)
                self._requests.advance(*job.branches)


def _judge(work: list[_Progress], is_finite: list[bool]) -> None:
    """Note which sequences have rows that are not finite, of the model's rows."""
    if not all(is_finite):
        for each in work:
            each.judge(is_finite)


def _not_finite(sequence: TokenSequence) -> NumericalError:
    return NumericalError(
        f"the model produced NaN or infinite values for this request, at one of the "
        f"{sequence.num_tokens} tokens of its prompt and generation. Nothing of it was cached. "
        "Load the model with dtype='float32', or check its weights"
    )
