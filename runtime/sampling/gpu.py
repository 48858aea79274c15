"""Hand a step's rows to the sampling kernel of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from radixlang.runtime.sampling.sampler import SamplingRow


def suits_kernel(rows: Sequence[SamplingRow]) -> bool:
    """Whether the kernel does all that these rows ask for.

    Top-k stays with torch's own selection; and an end token is only held back where a mask leaves
    others, which is seen too late here.
    """
    return not any(
        row.params.top_k is not None or (row.held_back and row.bitmask is not None) for row in rows
    )


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
    """Words [n, ceil(vocab_size / 32)] int32; all bits where a row has no mask."""
    if all(row.bitmask is None for row in rows):
        return None
    words = np.full((len(rows), -(-logits.shape[1] // 32)), -1, np.int32)
    for own, row in zip(words, rows, strict=True):
        if row.bitmask is not None:
            own[:] = row.bitmask[: len(own)]
    return torch.from_numpy(words).to(logits.device)
