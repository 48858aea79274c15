"""Pass a step's rows to the sampling kernel of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from radixlang.runtime.sampling.row import SamplingRow
from radixlang.sampling_params import SamplingParams

# Parameters that the kernel, or the code before it on a GPU, handles as the general sampler does.
HANDLED = frozenset({"temperature", "top_p", "min_p", "seed", "frequency_penalty",
                     "presence_penalty", "repetition_penalty"})  # fmt: skip
# Parameters that choose no token: the request handles them.
ELSEWHERE = frozenset({"max_tokens", "min_tokens", "stop", "stop_regex", "stop_token_ids",
                       "ignore_eos", "logprobs", "top_logprobs", "heal"})  # fmt: skip


def suits_kernel(rows: Sequence[SamplingRow]) -> bool:
    """Whether the kernel handles all parameters of these rows.

    A row that sets a parameter of neither list goes to the general sampler: so does top-k, which
    stays with torch's own selection, and any new parameter. An end token is held back only if a
    mask leaves others, which is not known here.
    """
    return all(
        is_known(row.params) and not (row.held_back and row.bitmask is not None) for row in rows
    )


def is_known(params: SamplingParams) -> bool:
    """Whether every parameter that is set has the same effect on a GPU as elsewhere."""
    kind: Any = type(params)  # a class with __eq__ is no Hashable to mypy
    return all(getattr(params, name) == usual for name, usual in _unknown(kind))


@cache
def _unknown(kind: type[SamplingParams]) -> tuple[tuple[str, object], ...]:
    """Parameters of neither list, with their defaults."""
    known = HANDLED | ELSEWHERE
    return tuple((each.name, each.default) for each in fields(kind) if each.name not in known)


def choose(logits: Tensor, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor]:
    """Tokens of rows [n, vocab_size] whose penalties are applied, and whether there were any."""
    from radixlang.kernels.gpu.sample_tokens import sample  # Triton is there on Linux only

    device = logits.device
    chances = torch.tensor(
        [(row.params.temperature, row.params.top_p, row.params.min_p or 0.0) for row in rows]
    ).to(device)
    seeds = np.array([row.seed % 2**64 for row in rows], np.uint64).view(np.int64)
    keys = torch.from_numpy(np.stack((seeds, [row.index for row in rows]))).to(device)
    temperature, top_p, min_p = chances.t().contiguous()
    return sample(logits, _bitmask(rows, logits), temperature, top_p, min_p, keys[0], keys[1])


def _bitmask(rows: Sequence[SamplingRow], logits: Tensor) -> Tensor | None:
    """Words [n, ceil(vocab_size / 32)] int32; all bits for a row without a mask."""
    if all(row.bitmask is None for row in rows):
        return None
    words = np.full((len(rows), -(-logits.shape[1] // 32)), -1, np.int32)
    for own, row in zip(words, rows, strict=True):
        if row.bitmask is not None:
            own[:] = row.bitmask[: len(own)]
    return torch.from_numpy(words).to(logits.device)
