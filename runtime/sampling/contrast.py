"""One row of logits from two branches': classifier-free guidance and contrastive decoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from radixlang.runtime.sampling.normaliser import log_normaliser
from radixlang.runtime.sampling.row import SamplingRow


def apply_contrasts(
    logits: Tensor, rows: Sequence[SamplingRow], logits_of: Callable[[Tensor], Tensor]
) -> None:
    """Set `changed` of the rows that another branch takes part in.

    Args:
        logits: float32 [num_rows, width], those of the rows' own branches; not changed.
        logits_of: the model's output [n, hidden_size] to logits [n, width].
    """
    taking = [(i, row.other) for i, row in enumerate(rows) if row.other is not None]
    if not taking:
        return
    own = _logprobs(logits[torch.tensor([i for i, _ in taking], device=logits.device)])
    others = _logprobs(logits_of(torch.stack([other.hidden for _, other in taking])))
    for (i, other), a, b in zip(taking, own, others, strict=True):
        rows[i].changed = b + other.how.weight * (a - b)
        rows[i].own = a


def drop_implausible(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Ban tokens that the row's own branch holds too unlikely, beside those that are not banned.

    Args:
        logits: float32 [num_rows, vocab_size] after bans and masks; changed in place.
    """
    for logit, row in zip(logits, rows, strict=True):
        least = 0.0 if row.other is None else row.other.how.plausibility
        if least and row.own is not None:
            own = row.own[: len(logit)].masked_fill(logit == -torch.inf, -torch.inf)
            logit.masked_fill_(own < own.max() + math.log(least), -torch.inf)


def is_contrast_finite(row: SamplingRow) -> bool:
    """Whether both branches' logits of a row are finite."""
    return row.changed is not None and bool(row.changed.isfinite().all())


def _logprobs(logits: Tensor) -> Tensor:
    return logits - log_normaliser(logits).unsqueeze(1)
