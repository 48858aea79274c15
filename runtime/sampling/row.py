"""The sampler's input for one row of logits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from radixlang.errors import LogitsError
from radixlang.protocol import Contrast
from radixlang.runtime.sampling.token_counts import SeenTokens
from radixlang.sampling_params import SamplingParams

NO_IDS: NDArray[np.int32] = np.empty(0, np.int32)
Bias = tuple[NDArray[np.int64], NDArray[np.float32]]  # token ids, and what is added to their logits


@dataclass(frozen=True, slots=True)
class OtherRow:
    """The other branch of a row: the model's output [hidden_size] at its last token, and how the
    logits of both become one row."""

    hidden: Tensor
    how: Contrast


@dataclass(slots=True)
class SamplingRow:
    """The sampler's input for one row.

    `index` counts the tokens of the generation so far; with `seed` it keys the random number.
    `held_back` are end tokens that are not allowed yet; `bitmask` int32 [ceil(vocab / 32)] has a
    bit for every allowed token, None allows all. `prompt_ids` and `generated_ids` are read only
    if penalties are on, or by a function of logits. `bias` are ids and what is added to their
    logits. `changed` float32 [vocab_size] are the logits that such a function gave, and `error` is
    its error. `other` is the branch whose logits are contrasted; `changed` are first those of both,
    and `own` float32 [vocab_size] the log-probabilities of the row's own branch. `tokens_seen` are
    the tokens so far as counted already; None: they are counted when asked for.
    """

    params: SamplingParams
    seed: int
    index: int
    held_back: tuple[int, ...] = ()
    bitmask: NDArray[np.int32] | None = None
    prompt_ids: NDArray[np.int32] = field(default_factory=lambda: NO_IDS)
    generated_ids: NDArray[np.int32] = field(default_factory=lambda: NO_IDS)
    bias: Bias | None = None
    changed: Tensor | None = None
    error: LogitsError | None = None
    other: OtherRow | None = None
    own: Tensor | None = None
    tokens_seen: SeenTokens | None = None

    @property
    def seen(self) -> SeenTokens:
        """Tokens before this row, each id once, with how often they were generated."""
        return self.tokens_seen or SeenTokens.of(self.prompt_ids, self.generated_ids)

    @property
    def has_penalty(self) -> bool:
        """True if earlier tokens change the logits."""
        p = self.params
        return bool(p.frequency_penalty or p.presence_penalty) or p.repetition_penalty != 1.0

    @property
    def reads_tokens(self) -> bool:
        """True if its tokens so far are needed."""
        return self.has_penalty or self.params.logits is not None

    @property
    def wants_logprobs(self) -> bool:
        """True if log-probabilities are recorded."""
        return self.params.logprobs or self.params.top_logprobs > 0

    @property
    def is_plain(self) -> bool:
        """True if the likeliest token is the answer."""
        return not (
            self.params.temperature or self.held_back or self.has_penalty
            or self.bitmask is not None or self.params.logit_bias or self.params.logits
            or self.other is not None
        )  # fmt: skip


# One row for all plain greedy rows, for which neither seed nor index matters.
GREEDY = SamplingRow(SamplingParams(temperature=0), seed=0, index=0)
