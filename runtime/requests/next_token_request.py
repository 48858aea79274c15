"""Reading the distribution of the token after a prompt; nothing of the branch changes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from radixlang.errors import NumericalError
from radixlang.protocol import NextToken, Usage
from radixlang.runtime.adapters.variants import PLAIN_SPANS, VariantSpans
from radixlang.runtime.requests.branch_state import BranchState
from radixlang.runtime.requests.request import Job
from radixlang.runtime.sampling.normaliser import log_normaliser
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.sequence import TokenIds, TokenSequence
from radixlang.runtime.text.tokenizer import Tokenizer

USUAL_TOP = 20  # tokens of the vocabulary, if the caller names no number


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tokens asked for.

    `among` are their ids, None all below `vocab_size`; `top` the most to return.
    """

    among: tuple[int, ...] | None
    top: int | None
    vocab_size: int


class NextTokenJob(Job):
    """A running reading.

    Args:
        prompt: int32 [n ≥ 1].
        variants: what computes it.
    """

    def __init__(
        self,
        branch: BranchState,
        future: Future[NextToken],
        prompt: TokenIds,
        wanted: Wanted,
        tokenizer: Tokenizer,
        variants: VariantSpans = PLAIN_SPANS,
        deadline_s: float | None = None,
    ) -> None:
        super().__init__(branch, future, deadline_s)
        self._wanted = wanted
        self._tokenizer = tokenizer
        self._keys = variants.keys(prompt)
        self._found: tuple[tuple[int, ...], tuple[float, ...], float] | None = None
        sequence = TokenSequence(
            self,
            branch.namespace,
            prompt,
            first_logit=len(prompt) - 1,
            holder=self.holder,
            variants=variants,
        )
        self.sequences[sequence] = None

    @property
    def holder(self) -> str:
        """The name of its sequence in the leak scanner and in events."""
        return f"next token on {self.branch.name}"

    def record(self, sequence: TokenSequence, first: int, logits: Tensor) -> None:
        """Take the one row of logits, at the prompt's last token."""
        wanted = self._wanted
        if not bool(logits.isfinite().all()):
            raise NumericalError(
                "the model produced NaN or infinite logits after this prompt. Load the model with "
                "dtype='float32', or check its weights"
            )
        logprobs = logits[0, : wanted.vocab_size] - log_normaliser(logits)
        entropy = -float((logprobs.exp() * logprobs).sum())
        if wanted.among is None:
            num = min(wanted.top or USUAL_TOP, wanted.vocab_size)
            values, ids = logprobs.topk(num)
        else:
            asked = torch.tensor(wanted.among, device=logits.device)
            values, order = logprobs[asked].sort(descending=True, stable=True)
            ids = asked[order]
            values, ids = values[: wanted.top], ids[: wanted.top]
        self._found = tuple(ids.tolist()), tuple(values.tolist()), entropy

    def computed(self, sequence: TokenSequence) -> list[TokenSequence]:
        """Nothing follows."""
        self.sequences.pop(sequence, None)
        return []

    @property
    def is_ready(self) -> bool:
        """True once the row was read."""
        return not self.sequences

    def finish(self, memory: Memory, later: Callable[[Callable[[], None]], None]) -> None:
        """Resolve; the branch keeps the prompt leased."""
        branch, found = self.branch, self._found
        assert found is not None
        match = memory.tree.match(branch.namespace, self._keys)
        branch.drop_lease()
        branch.lease = memory.tree.lease(match.node, branch.name)
        token_ids, logprobs, entropy = found
        texts = tuple(self._tokenizer.decode([token_id]) for token_id in token_ids)
        usage = Usage(
            num_prompt_tokens=self.num_cached + self.num_computed,
            num_cached_tokens=self.num_cached,
            num_computed_tokens=self.num_computed,
        )
        result = NextToken(token_ids, texts, logprobs, entropy, usage)
        later(lambda: None if self.future.done() else self.future.set_result(result))
