"""Cut a run of keys into pieces that all threads work on at once.

torch's flash call hands out (batch, key head, block of rows) tasks. A single branch of a model
with three key heads makes three: two threads take two rounds where one and a half would do, and
of eight threads five do nothing. Equal pieces of the keys as the batch mend that; merging what
they give costs less than idle threads, once there are enough keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 384  # keys a piece: fewer cost more in the merge than they save
GAIN = 0.9  # the share of the time that must be left for pieces to be worth it


@dataclass(frozen=True, slots=True)
class Pieces:
    """Equal pieces of a run. Where it does not divide evenly, neighbours overlap, and a mask
    hides from each piece what the one before it has covered."""

    count: int
    step: int  # keys from the start of one piece to that of the next
    length: int  # keys of each
    mask: Tensor | None  # [count, 1, 1, length] float32, 0 or -inf


def cut(num_keys: int, num_heads: int, packed_rows: int) -> Pieces | None:
    """How to share a run among this process's threads; None where it is best left whole.

    `num_heads` are key heads and `packed_rows` the query rows of each.
    """
    threads = torch.get_num_threads()
    most = min(num_keys // LEAST, threads)
    if most < 2:
        return None
    tasks = num_heads * _row_blocks(packed_rows)
    times = [-(-tasks * count // threads) / count for count in range(1, most + 1)]
    best = min(times)
    if best >= GAIN * times[0]:
        return None
    return _equal(num_keys, times.index(best) + 1)


def _equal(num_keys: int, count: int) -> Pieces:
    step, overlap = divmod(num_keys, count)
    length = step + overlap
    if not overlap:
        return Pieces(count, step, length, None)
    mask = torch.zeros(count, 1, 1, length)
    mask[1:, ..., :overlap] = -torch.inf
    return Pieces(count, step, length, mask)


def _row_blocks(packed_rows: int) -> int:
    """Blocks of rows that the flash call makes (ATen's FlashAttentionKernel.cpp)."""
    size = 256 if packed_rows >= 768 else 64 if packed_rows >= 192 else 32
    return -(-packed_rows // size)
