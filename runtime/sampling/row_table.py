"""What a device has to know to choose the tokens of a step's rows: one upload, whatever the rows.

Random numbers, masks and penalties are prepared on the host, packed into one buffer, and read
on the device by index: nothing there depends on a value that the host would have to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.upload import upload
from radixlang.runtime.sampling.counter_rng import uniform
from radixlang.runtime.sampling.penalties import Penalties
from radixlang.runtime.sampling.row import SamplingRow

NO_MASK = -1


@dataclass(frozen=True, slots=True)
class RowTable:
    """Parameters of some rows, on the device; of all or, by `part`, of a range of them.

    Attributes:
        rows: the same on the host.
        chances: float32 [4, n]: temperature, top_p, min_p (0: everything), repetition penalty.
        keys: int64 [2, n], seeds and counters, the bits of the host's uint64.
        numbers: float64 [n], the number in [0, 1) of each row's first draw.
        limits: int64 [n], top_k, the vocabulary's size without.
        masks: int32 [num_masks, words], bits of allowed tokens.
        mask_rows: int32 [n], a row's mask, NO_MASK without.
        seen: int64 [2, m], (row, token) of earlier tokens for repetition penalties.
        counted: int64 [2, k], (row, token) of generated tokens.
        charges: float32 [k], what frequency and presence penalties take from those.
        biased: int64 [2, b], (row, token) of logits that are biased.
        biases: float32 [b], what is added to those.
        starts: by row, the first of its columns in `seen`, in `counted` and in `biased`; one more
            at the end.
    """

    rows: Sequence[SamplingRow]
    chances: Tensor
    keys: Tensor
    numbers: Tensor
    limits: Tensor
    masks: Tensor
    mask_rows: Tensor
    seen: Tensor
    counted: Tensor
    charges: Tensor
    biased: Tensor
    biases: Tensor
    starts: NDArray[np.int64]

    def part(self, begin: int, end: int) -> RowTable:
        """The rows from `begin` to `end`; nothing is copied to or from the host."""
        if begin == 0 and end == len(self.rows):
            return self
        here = slice(begin, end)
        ends = self.starts[:, [begin, end]].tolist()
        seen, counted, biased = (slice(first, last) for first, last in ends)
        shift = torch.zeros((2, 1), dtype=torch.int64, device=self.seen.device)
        shift[0] = begin
        return RowTable(
            self.rows[here], self.chances[:, here], self.keys[:, here], self.numbers[here],
            self.limits[here], self.masks, self.mask_rows[here], self.seen[:, seen] - shift,
            self.counted[:, counted] - shift, self.charges[counted],
            self.biased[:, biased] - shift, self.biases[biased],
            self.starts[:, begin : end + 1] - self.starts[:, begin : begin + 1],
        )  # fmt: skip


def send_table(
    rows: Sequence[SamplingRow], vocab_size: int, device: torch.device, index: NDArray[np.int64]
) -> tuple[RowTable, Tensor]:
    """The table of the rows, and `index` int64 with it, in one copy."""
    masks, mask_rows = _masks(rows, vocab_size)
    earlier = _Columns.of(rows, vocab_size)
    params = [row.params for row in rows]
    chances = np.array(
        [(p.temperature, p.top_p, p.min_p or 0.0, p.repetition_penalty) for p in params], np.float32
    ).T
    seeds = np.array([row.seed % 2**64 for row in rows], np.uint64).view(np.int64)
    counters = [row.index for row in rows]
    limits = np.array([min(p.top_k or vocab_size, vocab_size) for p in params], np.int64)
    sent = upload(
        (np.stack((seeds, counters)), uniform([row.seed for row in rows], counters), limits, index,
         chances, masks, mask_rows, *earlier.arrays),
        device,
    )  # fmt: skip
    keys, numbers, limit, where, chance, mask, mask_row = sent[:7]
    seen, counted, charges, biased, biases = sent[7:]
    table = RowTable(
        rows, chance, keys, numbers, limit, mask, mask_row,
        seen, counted, charges, biased, biases, earlier.starts,
    )  # fmt: skip
    return table, where


def _masks(
    rows: Sequence[SamplingRow], vocab_size: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Bits of allowed tokens, each different mask once, and the mask of each row.

    End tokens that are held back are cleared there, unless a constraint leaves no other token.
    """
    words = -(-vocab_size // 32)
    masks: list[NDArray[np.int32]] = []
    held: dict[tuple[int, ...], int] = {}  # masks of rows without a constraint
    mask_rows = np.full(len(rows), NO_MASK, np.int32)
    for place, row in enumerate(rows):
        banned = tuple(i for i in row.held_back if i < vocab_size)
        if row.bitmask is None and banned:
            if banned not in held:
                held[banned] = len(masks)
                masks.append(_without(np.full(words, -1, np.int32), banned))
            mask_rows[place] = held[banned]
        elif row.bitmask is not None:
            mask_rows[place] = len(masks)
            masks.append(_allowed(row, banned, vocab_size))
    stacked = np.stack(masks) if masks else np.empty((0, words), np.int32)
    return stacked, mask_rows


def _allowed(row: SamplingRow, banned: tuple[int, ...], vocab_size: int) -> NDArray[np.int32]:
    """A row's mask without the banned tokens, unless that leaves none."""
    assert row.bitmask is not None
    bitmask = row.bitmask[: -(-vocab_size // 32)]
    rest = _without(bitmask, banned)
    inside = rest.copy()
    if row.bias is not None:
        ids, values = row.bias
        inside = _without(inside, tuple(ids[values == -np.inf].tolist()))
    if vocab_size % 32:
        inside[-1] &= (1 << (vocab_size % 32)) - 1  # bits of padding allow nothing
    return rest if inside.any() else bitmask


def _without(bitmask: NDArray[np.int32], banned: tuple[int, ...]) -> NDArray[np.int32]:
    bits = bitmask.copy().view(np.uint32)
    for token_id in banned:
        bits[token_id // 32] &= ~np.uint32(1 << (token_id % 32))
    return bits.view(np.int32)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns for single tokens of rows, in the order of the rows; see `RowTable`."""

    arrays: tuple[NDArray[np.generic], ...]  # seen, counted, charges, biased, biases
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[SamplingRow], vocab_size: int) -> _Columns:
        penalties = Penalties.of(rows, vocab_size)
        pairs, biases = [_NO_PAIRS], [_NO_VALUES]
        counts = np.zeros((3, len(rows)), np.int64)
        counts[:2] = penalties.sizes
        for place, row in enumerate(rows):
            if row.bias is not None:
                pairs.append(_pairs(place, row.bias[0]))
                biases.append(row.bias[1])
                counts[2, place] = len(row.bias[0])
        starts = np.concatenate((np.zeros((3, 1), np.int64), counts.cumsum(axis=1)), axis=1)
        arrays = (penalties.seen, penalties.counted, penalties.charges,
                  np.concatenate(pairs, axis=1), np.concatenate(biases))  # fmt: skip
        return cls(arrays, starts)


_NO_PAIRS = np.empty((2, 0), np.int64)
_NO_VALUES = np.empty(0, np.float32)


def _pairs(place: int, ids: NDArray[np.integer]) -> NDArray[np.int64]:
    return np.stack((np.full(len(ids), place), ids)).astype(np.int64)
