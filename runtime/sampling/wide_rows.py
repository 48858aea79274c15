"""Reductions over rows as wide as a vocabulary, in two steps: by blocks, then inside one block.

On a CPU torch's maximum with an index takes ten times as long as one without, and a running sum
many times as long as a sum; inside one block both cost next to nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and its first index of every row [n, m]; a NaN counts as the maximum."""
    blocks = _blocks(logits, -torch.inf)
    block = blocks.amax(dim=2).argmax(dim=1, keepdim=True)
    inside = blocks.gather(1, block.unsqueeze(2).expand(-1, -1, BLOCK)).squeeze(1)
    place = inside.argmax(dim=1, keepdim=True)
    return inside.gather(1, place).squeeze(1), (block * BLOCK + place).squeeze(1)


def invert(weight: Tensor, number: Tensor) -> Tensor:
    """Index at which the running sum of weights [n, m] passes number [n, 1] times their total.

    Args:
        weight: [n, m], none negative.
        number: [n, 1] in [0, 1), in the type of `wide`.
    """
    size = weight.shape[1]
    if size <= 4 * BLOCK:
        return _invert_small(weight.to(wide(weight)), number)[0].squeeze(1)
    blocks = _blocks(weight, 0.0)
    sums = blocks.sum(dim=2).to(wide(weight))
    block, before = _invert_small(sums, number)
    inside = blocks.gather(1, block.unsqueeze(2).expand(-1, -1, BLOCK)).squeeze(1)
    rest = ((number * sums.sum(dim=1, keepdim=True) - before) / sums.gather(1, block)).clamp(0, 1)
    return (block * BLOCK + _invert_small(inside.to(rest.dtype), rest)[0]).squeeze(1)


def _invert_small(weight: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """The index [n, 1], and the sum of the weights before it [n, 1]."""
    running = weight.cumsum(dim=1)
    total = running[:, -1:].contiguous()
    place = torch.searchsorted(running, number * total, right=True)
    last = torch.searchsorted(running, total)  # last index with any weight
    place = torch.minimum(place, last).clamp_max(weight.shape[1] - 1)  # of NaN: any index
    return place, running.gather(1, place) - weight.gather(1, place)


def _blocks(x: Tensor, filler: float) -> Tensor:
    """x [n, m] as [n, blocks, BLOCK], padded at the end."""
    missing = -x.shape[1] % BLOCK
    x = F.pad(x, (0, missing), value=filler) if missing else x
    return x.as_strided((x.shape[0], x.shape[1] // BLOCK, BLOCK), (x.stride(0), BLOCK, 1))


def wide(like: Tensor) -> torch.dtype:
    """The dtype of sums."""
    return torch.float64 if like.device.type != "mps" else torch.float32
