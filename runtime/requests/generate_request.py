"""One generation: takes its tokens, advances its constraint and text, and decides when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from radixlang.errors import (
    ConstraintError,
    IncompleteError,
    LogitsError,
    RadixlangError,
    UnsupportedConstraintError,
)
from radixlang.protocol import (
    Completion,
    Delta,
    FinishReason,
    Generation,
    Origin,
    TokenLogprob,
    Usage,
)
from radixlang.runtime.requests.branch_state import BranchState
from radixlang.runtime.requests.partner import Partner
from radixlang.runtime.requests.request import Job
from radixlang.runtime.sampling.row import GREEDY, Bias, SamplingRow
from radixlang.runtime.sampling.sampler import choose_among, row_logprob
from radixlang.runtime.sampling.token_counts import SeenTokens, TokenCounts
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.sequence import TokenIds, TokenSequence
from radixlang.runtime.speculative.drafts import NO_DRAFT, Drafter
from radixlang.runtime.text.stop_strings import Kept, TextTracker
from radixlang.runtime.text.token_healing import Unstable
from radixlang.sampling_params import SamplingParams

if TYPE_CHECKING:
    from radixlang.runtime.constraints.compiled import CompiledConstraint
    from radixlang.runtime.constraints.matcher import Matcher

MAX_DRAFT_S = 0.02  # seconds of checking one draft by a constraint; if slower, no more drafts


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """Limits by the model: `max_tokens` clamped to the context, `vocab_size` below which ids may be
    generated, and the width of the logits."""

    max_tokens: int
    end_ids: tuple[int, ...]
    vocab_size: int
    num_logits: int


class GenerateJob(Job):
    """A running generation.

    Args:
        sequence: prompt of the generation; its generated tokens are appended here.
        constraint: compiled constraint, None without one.
        unstable: last token of the prompt if it is to be chosen again, see token_healing.py.
        tracker: text of the generated tokens.
        drafter: drafts the tokens that follow; None goes token by token. A function of logits may
            have a state of its own, so none is asked about tokens that may be rejected.
        bias: what is added to the logits of which tokens.
        adapter: the name of the adapter that computes it, "" without one.
        partner: the other branch, if it is made from two branches' logits. Nothing is drafted then.
    """

    samples = True

    def __init__(
        self,
        branch: BranchState,
        generation: Generation,
        params: SamplingParams,
        limits: GenerationLimits,
        *,
        seed: int,
        tracker: TextTracker,
        constraint: CompiledConstraint | None = None,
        unstable: Unstable | None = None,
        drafter: Drafter | None = None,
        bias: Bias | None = None,
        adapter: str = "",
        deadline_s: float | None = None,
        partner: Partner | None = None,
    ) -> None:
        super().__init__(branch, generation, deadline_s)
        self.partner = partner
        self.generation = generation
        self.params = params
        self.limits = limits
        self.seed = seed
        self.tracker = tracker
        self.constraint = constraint
        self.matcher = constraint.matcher() if constraint is not None else None
        self.unstable = unstable
        self.bias = bias
        self._adapter = adapter
        self._weights_version = branch.namespace.weights_version
        self.sequence: TokenSequence
        self.num_forced = 0
        self.first_token_s: float | None = None
        self.ended: tuple[FinishReason, str | int | None] | None = None
        self._logprobs: list[TokenLogprob | None] = []
        self._num_told = 0  # of which streams have the log-probabilities
        self._wants_logprobs = params.logprobs or params.top_logprobs > 0
        # Log-probabilities of forced tokens come from separate steps.
        is_stepwise = constraint is not None and self._wants_logprobs
        is_stepwise |= params.logits is not None or partner is not None
        self.drafter = None if is_stepwise else drafter
        self.ahead: list[Matcher] = []  # a matcher after each token of the draft
        plain = SamplingRow(params, seed, 0)
        self._is_greedy = (
            plain.is_plain and constraint is None and not self._wants_logprobs and partner is None
        )
        self._end_ids = frozenset(() if params.ignore_eos else limits.end_ids)
        self._kept: Kept | None = None
        self._last: Delta | None = None
        self._counts: TokenCounts | None = None  # of its tokens, once a penalty asks for them
        self._closes = False  # `judge` finds the rest of the text
        self.num_counted = (0, 0)  # generated and forced tokens counted in the statistics

    @property
    def num_generated(self) -> int:
        """Tokens so far, forced ones included."""
        return len(self.tracker.token_ids)

    @property
    def num_to_write(self) -> int:
        """Most tokens that may follow, without the last, which needs no keys and values."""
        return max(0, self.limits.max_tokens - self.num_generated - 1)

    @property
    def branches(self) -> tuple[BranchState, ...]:
        """The branches that the tokens are appended to."""
        return (self.branch,) if self.partner is None else (self.branch, self.partner.branch)

    def begin(self, sequence: TokenSequence, other: TokenSequence | None = None) -> None:
        """Take the sequence of the prompt, and that of the partner's; a constraint's forced
        beginning is appended at once, unless the prompt's last token is still to be chosen."""
        self.sequence = sequence
        self.sequences[sequence] = None
        if self.partner is not None and other is not None:
            self.partner.join(sequence, other)
            self.sequences[other] = None
        if self.matcher is not None and self.unstable is None:
            self._after_constraint()

    @property
    def is_followed(self) -> bool:
        """Whether deltas are published with every step; they carry which tokens were forced."""
        return self.generation.is_followed or self.matcher is not None

    def stop(self) -> None:
        """End here, unless it has ended.

        Raises:
            IncompleteError: the text so far does not satisfy the constraint.
        """
        if self.ended is None:
            self._end("stopped", None)

    def tell(self, later: Callable[[Callable[[], None]], None]) -> None:
        """Publish the text that has become final; not before the log-probabilities of its forced
        tokens are known."""
        if self._wants_logprobs and None in self._logprobs[self._num_told :]:
            return
        delta = self._with_logprobs(self.tracker.take_delta())
        if delta is not None:
            later(partial(self.generation.push, delta))

    def _with_logprobs(self, delta: Delta | None) -> Delta | None:
        if delta is None or not self._wants_logprobs:
            return delta
        first, self._num_told = self._num_told, self._num_told + len(delta.token_ids)
        told = self._logprobs[first : self._num_told]
        return replace(delta, logprobs=tuple(each for each in told if each is not None))

    @property
    def is_ready(self) -> bool:
        """True if it has ended and no log-probability of its tokens is missing."""
        waits = self._wants_logprobs and None in self._logprobs
        return self.ended is not None and not waits

    def draft(self) -> tuple[TokenIds, float]:
        """Draft tokens after the pending one, no more than may still come."""
        if self.drafter is None or self.ended is not None:
            return NO_DRAFT, 0.0
        draft = self.drafter.propose(self.sequence.tokens)[: self.num_to_write]
        if self.matcher is not None and len(draft):
            draft = draft[: self._num_valid(draft.tolist())]
        return draft, self.drafter.rate if self.drafter is not None and len(draft) else 0.0

    def _num_valid(self, token_ids: list[int]) -> int:
        """Number of draft tokens that the constraint allows; a slow check ends drafting."""
        assert self.matcher is not None
        begun_s = time.thread_time()
        try:
            num: int = self.matcher.num_valid(token_ids)
        except UnsupportedConstraintError:  # consuming the next token will raise it
            num = 0
        if time.thread_time() - begun_s > MAX_DRAFT_S:
            num, self.drafter = 0, None
        return num

    def look_ahead(self) -> None:
        """Fork a matcher for each token of the draft, which ends where the constraint ends."""
        self.ahead = []
        here = self.matcher
        assert here is not None
        begun_s = time.thread_time()
        for token_id in self.sequence.draft.tolist():
            here = here.fork()
            try:
                here.consume((token_id,))
            except ConstraintError:
                break
            self.ahead.append(here)
            if time.thread_time() - begun_s > MAX_DRAFT_S:
                self.drafter = None
                break
        self.shorten_draft(len(self.ahead))

    def shorten_draft(self, num_tokens: int) -> None:
        """Keep at most so many tokens of the draft."""
        del self.ahead[num_tokens:]
        self.sequence.draft = self.sequence.draft[:num_tokens]

    def rows(self) -> list[SamplingRow]:
        """The sampler's rows for the next token, and for those after each token of the draft;
        none if the mask allows no token, which ends the generation."""
        if self.matcher is not None and self.matcher.is_finished:
            self._end("constraint", None)
            return []
        num_rows = len(self.sequence.draft) + 1
        if self._is_greedy and self.num_generated >= self.params.min_tokens:
            return [GREEDY] * num_rows
        return [self._row(ahead) for ahead in range(num_rows)]

    def _row(self, ahead: int) -> SamplingRow:
        """The row after `ahead` tokens of the draft."""
        params, sequence, index = self.params, self.sequence, self.num_generated + ahead
        row = SamplingRow(params, self.seed, index, bitmask=self._mask(ahead), bias=self.bias)
        if index < params.min_tokens:
            row.held_back = (*self._end_ids, *params.stop_token_ids)
        elif params.ignore_eos and self.matcher is not None:
            row.held_back = self.limits.end_ids  # its masks allow them
        if self.partner is not None:
            row.other = self.partner.other_row
        if row.reads_tokens:
            row.prompt_ids = sequence.tokens[: sequence.num_prompt]
            row.generated_ids = sequence.tokens[sequence.num_prompt :]
            if ahead:
                row.generated_ids = np.concatenate((row.generated_ids, sequence.draft[:ahead]))
            elif row.has_penalty:
                row.tokens_seen = self._seen(row)
        return row

    def _seen(self, row: SamplingRow) -> SeenTokens:
        """The tokens before the next one, counted from those of the step before on."""
        counts = self._counts
        if counts is None or counts.num_prompt != len(row.prompt_ids):  # healing shortens a prompt
            counts = self._counts = TokenCounts(row.prompt_ids)
        counts.count(row.generated_ids)
        return counts.seen

    def accept(self, token_id: int, logprob: TokenLogprob | None) -> None:
        """Take a sampled token; sets `ended` if it was the last.

        Raises:
            ConstraintError: the constraint allows no continuation, or the text is incomplete.
        """
        if self.first_token_s is None:
            self.first_token_s = time.monotonic()
        if token_id in self._end_ids:
            self._end("eos", token_id)
        elif token_id in self.params.stop_token_ids:
            self._end("stop", token_id)
        else:
            self._take(token_id, logprob)

    def _take(self, token_id: int, logprob: TokenLogprob | None, *, skip: int = 0) -> None:
        """Take a chosen token, whose first `skip` bytes are the prompt's."""
        self._append(token_id, logprob, skip=skip)
        if self.ended is None and self.matcher is not None:
            if skip:
                self.matcher.consume_rest(token_id, skip)
            else:
                self.matcher.consume((token_id,))
            self._after_constraint()
        self._check_length()

    def record(self, sequence: TokenSequence, first: int, logits: Tensor) -> None:
        """Choose an unstable token again; later calls record log-probabilities of forced tokens.

        Raises:
            ConstraintError: as `accept`.
        """
        num_top, vocab_size = self.params.top_logprobs, self.limits.vocab_size
        for position, row in enumerate(logits, first + 1):
            if position < sequence.num_prompt:
                self._heal(row)
            elif position < sequence.num_tokens:
                target = int(sequence.tokens[position])
                record = row_logprob(row, target, num_top, vocab_size)
                self._logprobs[position - sequence.num_prompt] = record

    def _heal(self, logits: Tensor) -> None:
        """Replace the prompt's last token if the model prefers a longer one."""
        unstable, self.unstable = self.unstable, None
        if unstable is None:
            return
        choice = choose_among(logits, unstable.candidate_ids, self.params, self.seed, self.bias)
        if choice == unstable.token_id:
            return
        self.sequence.withdraw()
        self.first_token_s = time.monotonic()
        num_top, vocab_size = self.params.top_logprobs, self.limits.vocab_size
        record = row_logprob(logits, choice, num_top, vocab_size) if self._wants_logprobs else None
        self._take(choice, record, skip=unstable.num_bytes)

    def computed(self, sequence: TokenSequence) -> list[TokenSequence]:
        """No further sequences: the engine samples from this one."""
        return []

    def finish(self, memory: Memory, later: Callable[[Callable[[], None]], None]) -> None:
        """Commit the computed part of the kept tokens, and move the branches to their end."""
        kept, last = self.tracker.finish(whole=self._closes)
        self._last = self._with_logprobs(last)
        self._kept = kept
        _move(self.branch, self.sequence, kept, memory)
        if self.partner is not None:
            _move(self.partner.branch, self.partner.sequence, kept, memory)
        if self.judge is None:
            self.resolve("", later)

    def resolve(self, closing: str, later: Callable[[Callable[[], None]], None]) -> None:
        """Hand out the result after validation; `closing` is appended to its text."""
        delta, kept = self._last, self._kept
        assert kept is not None
        if closing:
            for branch in self.branches:
                branch.run = (kept.rest + closing,)
            delta = replace(delta or Delta(""), text=(delta.text if delta else "") + closing)
        result = self._completion(kept, closing)
        if delta is not None:
            later(lambda: self.generation.push(delta))
        later(lambda: None if self.generation.done() else self.generation.set_result(result))

    def _completion(self, kept: Kept, closing: str) -> Completion:
        assert self.ended is not None
        reason, stop_reason = self.ended
        logprobs = self._logprobs[: kept.num_tokens] if self._wants_logprobs else None
        return Completion(
            text=kept.text + closing,
            token_ids=tuple(self.tracker.token_ids[: kept.num_tokens]),
            finish_reason=reason,
            stop_reason=stop_reason,
            logprobs=None if logprobs is None else tuple(p for p in logprobs if p is not None),
            usage=self._usage(),
            origin=Origin(
                self.sequence.tokens[: self.sequence.num_prompt],
                tuple(i for i in self.tracker.forced if i < kept.num_tokens),
                self._weights_version,
                self._adapter,
            ),
        )

    def _usage(self) -> Usage:
        now = time.monotonic()
        return Usage(
            num_prompt_tokens=self.num_cached + self.num_computed,
            num_cached_tokens=self.num_cached,
            num_computed_tokens=self.num_computed,
            num_generated_tokens=self.num_generated,
            num_forced_tokens=self.num_forced,
            time_to_first_token_s=(self.first_token_s or now) - self.posted_s,
            total_s=now - self.posted_s,
            num_pages=self.pages.num_pages,
            num_pages_read=self.pages.num_read,
            omitted_mass=self.pages.omitted_mass,
        )

    def _append(
        self,
        token_id: int,
        logprob: TokenLogprob | None,
        *,
        forced: bool = False,
        skip: int = 0,
    ) -> None:
        self.sequence.append(token_id)
        if self.partner is not None:
            self.partner.append(token_id)
        self._logprobs.append(logprob)
        if not (forced and self._wants_logprobs):
            self.sequence.first_logit = self.sequence.num_tokens - 1
        self.tracker.push(token_id, forced=forced, skip=skip)
        if self.tracker.stop is not None:
            self._end("stop", self.tracker.stop[0])

    def _after_constraint(self) -> None:
        """End after a satisfied constraint, or append forced tokens.

        No mask is computed here: that is done while the model's step runs.
        """
        matcher = self.matcher
        assert matcher is not None
        while self.ended is None and not matcher.has_stopped:
            forced = matcher.forced_tokens()
            if not forced:
                return
            for token_id in forced:
                if self.num_generated < self.limits.max_tokens and self.ended is None:
                    self._append(token_id, None, forced=True)
                    self.num_forced += 1
                    matcher.consume((token_id,))
            self._check_length()
        if self.ended is None:
            self._end("constraint", None)

    def _check_length(self) -> None:
        if self.ended is None and self.num_generated >= self.limits.max_tokens:
            is_finished = self.matcher is not None and self.matcher.is_finished
            self._end("constraint" if is_finished else "length", None)

    def _end(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        """End, or fail at once if the constraint is not satisfied; slow checks are left to
        `judge`. A stop string may begin inside a token, so the text before it is matched again."""
        self.ended = (reason, stop_reason)
        matcher, constraint = self.matcher, self.constraint
        if matcher is None or constraint is None:
            return
        text = self.tracker.final_text
        if self.tracker.stop is not None:
            self.judge = partial(_check_again, constraint, text, self._incomplete(reason))
        elif matcher.is_complete:
            self.judge = partial(constraint.check, text) if constraint.has_check else None
        elif constraint.finish == "close" and reason in ("length", "stopped"):
            self.judge = partial(constraint.close, matcher.text_bytes())
            self._closes = True
        else:
            raise self._incomplete(reason)

    def _incomplete(self, reason: FinishReason) -> IncompleteError:
        return IncompleteError(
            f"generation ended ({reason}) after {self.num_generated} tokens, before its constraint "
            f"was satisfied; text so far: {self.tracker.text!r}. Raise max_tokens="
            f"{self.limits.max_tokens}, or allow shorter values",
            partial=self.tracker.text,
            token_ids=tuple(self.tracker.token_ids),
            num_prompt_tokens=self.sequence.num_prompt,
            num_cached_tokens=self.num_cached,
        )

    def _mask(self, ahead: int) -> NDArray[np.int32] | None:
        if self.matcher is None:
            return None
        matcher = self.ahead[ahead - 1] if ahead else self.matcher
        bitmask = np.empty(-(-self.limits.num_logits // 32), np.int32)
        matcher.fill_bitmask(bitmask)
        return bitmask


def _move(branch: BranchState, sequence: TokenSequence, kept: Kept, memory: Memory) -> None:
    """Move a branch to the end of the kept tokens of its sequence."""
    end = sequence.num_prompt + kept.num_tokens
    if sequence.lease is not None:
        memory.commit(sequence, min(sequence.num_computed, end))
        branch.drop_lease()
        branch.lease = sequence.lease
        sequence.hold(None)
        branch.lease.holder = branch.name
    branch.fixed = sequence.tokens[:end].copy()
    branch.variants, branch.run_variant = sequence.variants.until(end), branch.variant
    branch.run = (kept.rest,) if kept.rest else ()


def _check_again(constraint: CompiledConstraint, text: str, incomplete: IncompleteError) -> None:
    if not constraint.match(text):
        raise incomplete


def no_token_left(job: GenerateJob) -> RadixlangError:
    """The error of a row whose masks left no token."""
    if job.bias is not None or job.params.logits is not None:
        return LogitsError(
            f"logit_bias= or logits= has banned every token that may follow {job.tracker.text!r}; "
            "leave one"
        )
    return ConstraintError(
        f"the constraint allows no token after {job.tracker.text!r}; it contradicts itself there, "
        "or its text cannot be written in this model's vocabulary"
    )
