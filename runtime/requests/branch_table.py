"""Starts the operations of branches: from text to tokens, from operations to jobs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from radixlang.attention import EXACT, Attention
from radixlang.errors import ParameterError, PoolExhaustedError, PromptTooLongError
from radixlang.protocol import Markup
from radixlang.runtime.adapters.variants import ModelVariant, VariantTable
from radixlang.runtime.cache.radix_tree import Namespace, RadixNode
from radixlang.runtime.requests.branch_state import (
    NO_TOKENS,
    BranchState,
    Expect,
    Extend,
    ForkInto,
    Generate,
    Keep,
    Operation,
    Pair,
    Peek,
    ReadTokens,
    Release,
    Score,
    UseAdapter,
    released_error,
)
from radixlang.runtime.requests.generate_request import GenerateJob, GenerationLimits
from radixlang.runtime.requests.next_token_request import NextTokenJob, Wanted
from radixlang.runtime.requests.next_use_hints import NextUses
from radixlang.runtime.requests.partner import Partner
from radixlang.runtime.requests.request import Job
from radixlang.runtime.requests.score_request import ScoreJob, num_shared
from radixlang.runtime.sampling.counter_rng import SeedSource
from radixlang.runtime.scheduling.sequence import TokenIds, TokenSequence
from radixlang.runtime.speculative.drafts import DraftPolicy
from radixlang.runtime.text.option_tokens import option_runs
from radixlang.runtime.text.single_tokens import bias_of, single_token
from radixlang.runtime.text.stop_strings import TextTracker
from radixlang.runtime.text.token_healing import Healer, Unstable
from radixlang.runtime.text.tokenizer import Tokenizer
from radixlang.sampling_params import SamplingParams

if TYPE_CHECKING:
    from radixlang.runtime.constraints.compiled import CompiledConstraint

Later = Callable[[Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Serving:
    """The model's properties that branches need.

    `vocab_size` bounds the ids that may be generated, `num_logits` is the width of the logits,
    `max_tokens_held` the tokens that the pool has room for, `attention` that of generations which
    name none; one that is not exact needs `reads_pages`.
    """

    tokenizer: Tokenizer
    context_length: int
    vocab_size: int
    num_logits: int
    end_ids: tuple[int, ...]
    max_tokens_held: int
    attention: Attention = EXACT
    reads_pages: bool = True


class Branches:
    """All branches that were not released, and their operations.

    Branches at rest hold a lease on their path, so that it stays cached. Under memory pressure
    `yield_lease` releases one, that of the branch longest at rest.
    """

    def __init__(
        self, serving: Serving, seeds: SeedSource, next_uses: NextUses, drafts: DraftPolicy
    ) -> None:
        self.serving = serving
        self.drafts = drafts
        self._next_uses = next_uses
        self._seeds = seeds
        self._healer: Healer | None = None
        self.variants = VariantTable()
        self.weights_version = 0
        self.keep: Callable[[RadixNode], None] | None = None  # writes a path to the disk tier
        self._live: dict[BranchState, None] = {}
        self._resting: OrderedDict[BranchState, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    def all(self) -> list[BranchState]:
        """Every branch that was not released."""
        return list(self._live)

    def start(self, state: BranchState, operation: Operation, later: Later) -> Job | None:
        """Carry out an operation; returns a job if it needs the model."""
        self._live[state] = None
        state.namespace = self.current(state.namespace)
        match operation:
            case Extend(content):
                state.extend(content, self.serving.tokenizer.encode_run)
            case Generate():
                self._next_uses.begin_request(state)
                return self._generate(state, operation)
            case Score():
                self._next_uses.begin_request(state)
                return self._score(state, operation)
            case Peek():
                return self._peek(state, operation, later)
            case UseAdapter(variant):
                self._use_adapter(state, variant)
            case ForkInto(children):
                for child in children:
                    self._bear(state, child)
            case Expect(next_in):
                self._next_uses.expect(state, next_in, len(self._live))
            case Keep():
                if self.keep is not None and state.lease is not None:
                    self.keep(state.lease.node)
            case ReadTokens(future):
                tokens = tuple(state.prompt(self.serving.tokenizer.encode_run).tolist())
                later(lambda: None if future.done() else future.set_result(tokens))
            case Release():
                self.release(state)
        return None

    def rest(self, state: BranchState) -> None:
        """Note that a branch has nothing running: its lease may be taken."""
        if state.lease is not None:
            self._resting[state] = None
            self._resting.move_to_end(state)

    def let_go(self, state: BranchState) -> None:
        """Release a branch's lease."""
        self._resting.pop(state, None)
        self._next_uses.let_go(state)
        state.drop_lease()

    def release(self, state: BranchState) -> None:
        """Forget a branch."""
        self.fail(state, released_error(state))

    def fail(self, state: BranchState, error: BaseException) -> None:
        """Keep only a branch's first error, whether or not the branch is ever released."""
        self.let_go(state)
        self._live.pop(state, None)
        state.fixed, state.run, state.adapters = NO_TOKENS, (), frozenset()
        state.error = state.error or error

    def current(self, namespace: Namespace) -> Namespace:
        """The namespace under the weights in use."""
        if namespace.weights_version == self.weights_version:
            return namespace
        return replace(namespace, weights_version=self.weights_version)

    def renew(self, state: BranchState) -> None:
        """Move a branch to the weights in use; its lease is on nodes of the old ones."""
        self.let_go(state)
        state.namespace = self.current(state.namespace)

    def yield_lease(self) -> bool:
        """Release the lease of the branch longest at rest; False if there is none."""
        if not self._resting:
            return False
        state, _ = self._resting.popitem(last=False)
        self._next_uses.let_go(state)
        state.drop_lease()
        return True

    def _use_adapter(self, state: BranchState, variant: ModelVariant | None) -> None:
        state.variant, state.invocation = self.variants.number(variant), ()
        adapter = self.variants[state.variant].adapter
        if adapter is not None:
            state.invocation = adapter.invocation
            state.adapters |= {adapter}

    def _bear(self, parent: BranchState, child: BranchState) -> None:
        if child.is_born:  # it was cancelled before the fork ran
            return
        child.is_born = True
        child.fixed, child.run, child.family = parent.fixed, parent.run, parent.family
        child.variants, child.variant = parent.variants, parent.variant
        child.run_variant, child.invocation = parent.run_variant, parent.invocation
        child.adapters = parent.adapters
        if parent.lease is not None:
            child.lease = parent.lease.fork(child.name)
        self._live[child] = None
        self.rest(child)

    def start_pair(self, operation: Generate, pair: Pair) -> GenerateJob:
        """Begin a generation from the logits of two branches that have both come to it."""
        for state in (pair.first, pair.second):
            self._live[state] = None
            state.namespace = self.current(state.namespace)
            self._next_uses.begin_request(state)
        return self._generate(pair.first, operation, Partner(pair.second, pair.how))

    def _generate(
        self, state: BranchState, operation: Generate, partner: Partner | None = None
    ) -> GenerateJob:
        serving, params = self.serving, operation.params
        prompt = self._prompt(state)
        other = None if partner is None else self._prompt(partner.branch)
        attention, adapter = self._attention(params), self.variants[state.variant].adapter
        room = serving.context_length - max(len(prompt), 0 if other is None else len(other))
        limits = GenerationLimits(
            max_tokens=min(params.max_tokens, room),
            end_ids=serving.end_ids,
            vocab_size=serving.vocab_size,
            num_logits=serving.num_logits,
        )
        job = GenerateJob(
            state,
            operation.generation,
            params,
            limits,
            seed=params.seed if params.seed is not None else self._seeds.next(),
            tracker=TextTracker(
                serving.tokenizer.stream(), params.stop, params.min_tokens, params.stop_regex
            ),
            constraint=_checked(operation.constraint),
            unstable=self._unstable(state, operation, prompt),
            drafter=self.drafts.drafter(state.namespace) if attention == EXACT else None,
            bias=bias_of(params.logit_bias, serving.tokenizer, serving.vocab_size),
            adapter="" if adapter is None else adapter.name,
            deadline_s=operation.deadline_s,
            partner=partner,
        )
        num_rows = 1 if job.unstable is None else 2
        sequence = self._sequence(job, state, prompt, attention, num_rows=num_rows)
        job.begin(
            sequence,
            None
            if partner is None or other is None
            else self._sequence(job, partner.branch, other, attention, num_rows=1),
        )
        return job

    def _attention(self, params: SamplingParams) -> Attention:
        """How much of its path a generated token reads; refuses what this device cannot do."""
        attention = params.attention or self.serving.attention
        if attention != EXACT and not self.serving.reads_pages:
            raise ParameterError(
                f"attention={attention} is served on a CPU alone; on a GPU give Exact()"
            )
        return attention

    def _sequence(
        self,
        job: GenerateJob,
        state: BranchState,
        prompt: TokenIds,
        attention: Attention,
        *,
        num_rows: int,
    ) -> TokenSequence:
        """The sequence of a generation on a branch; the logits of its last rows are needed."""
        reading = self.variants.reading(state.variant, attention)
        return TokenSequence(
            job,
            state.namespace,
            prompt,
            first_logit=len(prompt) - num_rows,
            holder=f"generation on {state.name}",
            variants=state.variants_from(prompt, self.variants).since(len(prompt), reading),
        )

    def _prompt(self, state: BranchState) -> TokenIds:
        """All tokens of a branch; refuses a prompt that can never be served."""
        prompt = state.prompt(self.serving.tokenizer.encode_run)
        self._check_length(len(prompt))
        return prompt

    def _unstable(
        self, state: BranchState, operation: Generate, prompt: TokenIds
    ) -> Unstable | None:
        """The last token of the prompt if it is to be chosen again."""
        last = state.run[-1] if state.run else None
        is_text = isinstance(last, str) and not isinstance(last, Markup) and last != ""
        params = operation.params
        if not (params.heal and is_text) or params.logits is not None or operation.pair:
            return None
        if len(prompt) < 2 or len(prompt) == len(state.fixed):
            return None
        if self._healer is None:
            self._healer = Healer(self.serving.tokenizer, self.serving.vocab_size)
        return self._healer.unstable(int(prompt[-1]), len(prompt) - 1, operation.constraint)

    def _score(self, state: BranchState, operation: Score) -> ScoreJob:
        plain = state.run_ids(self.serving.tokenizer.encode_run)
        texts, runs = self._options(state, plain, operation.options)
        shared = num_shared([plain, *runs])
        base = np.concatenate((state.fixed, np.array(plain[:shared], np.int32)))
        if not len(base):
            raise ParameterError(
                "options cannot be scored after an empty prompt: there is nothing to predict the "
                "first token from. Extend the branch with text first"
            )
        num_computed = max(len(plain), max(map(len, runs)) - 1)  # not the last token of an option
        self._check_length(len(state.fixed) + num_computed, ahead=0)
        options = [(text, tuple(run[shared:])) for text, run in zip(texts, runs, strict=True)]
        variants = state.variants_from(base, self.variants)
        job = ScoreJob(
            state, operation.future, base, options, variants, operation.deadline_s,
            num_top=min(operation.num_top, self.serving.vocab_size),
            vocab_size=self.serving.vocab_size,
        )  # fmt: skip
        job.begin()
        return job

    def _options(
        self,
        state: BranchState,
        plain: list[int],
        options: tuple[str, ...] | tuple[tuple[int, ...], ...],
    ) -> tuple[list[str], list[list[int]]]:
        """The options' texts, and the token ids of the run followed by each option."""
        texts = [option for option in options if isinstance(option, str)]
        if texts:
            return texts, self._option_runs(state, tuple(texts))
        exact = [option for option in options if not isinstance(option, str)]
        return list(map(self.serving.tokenizer.decode, exact)), [[*plain, *ids] for ids in exact]

    def _peek(self, state: BranchState, operation: Peek, later: Later) -> NextTokenJob | None:
        """A reading of the next token; a token that is none fails the reading alone."""
        serving, future = self.serving, operation.future
        prompt = state.prompt(serving.tokenizer.encode_run)
        self._check_length(len(prompt), ahead=0)
        try:
            among = (
                None
                if operation.among is None
                else tuple(
                    single_token(token, serving.tokenizer, serving.vocab_size)
                    for token in operation.among
                )
            )
        except ParameterError as error:
            refusal = error
            later(lambda: None if future.done() else future.set_exception(refusal))
            return None
        wanted = Wanted(among, operation.top, serving.vocab_size)
        variants = state.variants_from(prompt, self.variants)
        return NextTokenJob(
            state, future, prompt, wanted, serving.tokenizer, variants, operation.deadline_s
        )

    def _option_runs(self, state: BranchState, options: tuple[str, ...]) -> list[list[int]]:
        """Token ids of the run followed by each option of text."""
        encode = self.serving.tokenizer.encode_run
        texts = [piece for piece in state.run if isinstance(piece, str)]
        if len(texts) < len(state.run):  # token ids among the pieces
            return [state.run_ids(encode, option) for option in options]
        at_start = not len(state.fixed)
        return option_runs(
            texts, options, partial(encode, at_start=at_start), partial(encode, at_start=False)
        )

    def _check_length(self, num_tokens: int, ahead: int = 1) -> None:
        """Refuse a prompt that can never be served with `ahead` further tokens."""
        serving = self.serving
        if num_tokens == 0:
            raise ParameterError(
                "the prompt is empty, and this model has no token that begins a text; extend the "
                "branch with text first"
            )
        if num_tokens + ahead > serving.context_length:
            raise PromptTooLongError(
                f"the prompt has {num_tokens} tokens and the model's context is "
                f"{serving.context_length}, which a prompt and its generation share; shorten the "
                "prompt, or load the model with a larger context_length="
            )
        if num_tokens > serving.max_tokens_held:
            raise PoolExhaustedError(
                f"the prompt has {num_tokens} tokens and the whole KV pool holds "
                f"{serving.max_tokens_held}; make the pool larger (kv_bytes= or num_pages=), or "
                "the prompt shorter"
            )


def _checked(constraint: object) -> CompiledConstraint | None:
    """The compiled constraint; refuses anything else."""
    if constraint is not None and not hasattr(constraint, "matcher"):
        raise ParameterError(
            f"a constraint must come from compile_constraint, got {type(constraint).__name__}"
        )
    return cast("CompiledConstraint | None", constraint)
