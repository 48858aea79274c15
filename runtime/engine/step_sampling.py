"""The sampler of a step: a part of its rows after another on the host, all at once on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from radixlang.runtime.process.device import Device
from radixlang.runtime.sampling.contrast import apply_contrasts
from radixlang.runtime.sampling.device_sampler import StepTokens, is_known, sample_step
from radixlang.runtime.sampling.row import SamplingRow
from radixlang.runtime.sampling.sampler import Sampled, sample


class StepSampler:
    """Chooses tokens for rows of a step's output.

    Args:
        logits: rows of the model's output to float32 logits.
        vocab_size: ids that a token may have.
        max_rows: rows of logits in memory at once.
    """

    def __init__(
        self,
        device: Device,
        logits: Callable[[Tensor], Tensor],
        vocab_size: int,
        max_rows: int,
    ) -> None:
        self._device = device
        self._logits = logits
        self._vocab_size = vocab_size
        self._max_rows = max_rows

    def sample(
        self,
        hidden: Tensor,
        index: Sequence[int],
        rows: Sequence[SamplingRow],
        is_finite: Tensor,
        meanwhile: Callable[[], None],
    ) -> StepTokens:
        """One token for each row.

        Args:
            meanwhile: called while a device computes, before its tokens are waited for.
            hidden: [num_rows, hidden_size], a step's output.
            index: the rows of it to sample from, one for each of `rows`.
            is_finite: bool [num_tokens] of the model's rows; fetched with the tokens.
        """
        if not rows:
            meanwhile()
            return StepTokens(Sampled([], [], [], []), is_finite.tolist())
        if self._device.is_host or not all(_is_known(row) for row in rows):
            meanwhile()
            return StepTokens(self._by_parts(hidden, index, rows), is_finite.tolist())
        return sample_step(
            hidden,
            index,
            rows,
            self._logits,
            is_finite,
            self._vocab_size,
            max_rows=self._max_rows,
            meanwhile=meanwhile,
        )

    def _by_parts(
        self, hidden: Tensor, index: Sequence[int], rows: Sequence[SamplingRow]
    ) -> Sampled:
        found = Sampled([], [], [], [])
        for start in range(0, len(rows), self._max_rows):
            here = slice(start, start + self._max_rows)
            logits = self._logits(select_rows(hidden, index[here]))
            apply_contrasts(logits, rows[here], self._logits)
            got = sample(logits, rows[here], self._vocab_size)
            del logits  # free them before the next part takes as much
            found.token_ids.extend(got.token_ids)
            found.is_finite.extend(got.is_finite)
            found.is_allowed.extend(got.is_allowed)
            found.logprobs.extend(got.logprobs)
        return found


def _is_known(row: SamplingRow) -> bool:
    """Whether the sampler of a device knows all of a row."""
    return row.other is None and is_known(row.params)


def select_rows(hidden: Tensor, index: Sequence[int]) -> Tensor:
    """Rows of the step's output, without a copy if they are all rows in order."""
    if list(index) == list(range(len(hidden))):
        return hidden
    return hidden[torch.tensor(index, device=hidden.device)]
