"""Tile shapes of the Triton kernels: which a stretch of rows gets, and what a launch needs."""

from __future__ import annotations

from dataclasses import dataclass

SMALL_M = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """One compiled shape of the attention kernels."""

    block_m: int  # packed rows (row, query head of the group)
    block_n: int  # keys
    num_warps: int
    num_stages: int

    def rows(self, group_size: int) -> int:
        """Whole rows that fit; a row's heads are never split over two tiles."""
        return self.block_m // group_size


def pick_tile(packed_rows: int, head_dim: int, group_size: int = 1) -> Tile:
    """The tile for a node with this many packed rows.

    Fewer than three stages would load the slots of a block synchronously; 128 keys a block at 64
    rows spill on sm_80.
    """
    needed = max(min(packed_rows, 128), group_size)
    block_n = 32 if head_dim > 128 else 64
    if needed <= SMALL_M:
        return Tile(16, block_n, 4, 3)
    if needed <= 32:
        return Tile(32, block_n, 4, 3)
    if needed <= 96 or head_dim > 128:
        return Tile(64, block_n, 4 if head_dim <= 128 else 8, 3 if head_dim <= 128 else 2)
    if needed <= 128:
        return Tile(128, block_n, 8, 3)
    raise ValueError(
        f"{group_size} query heads a key head do not fit one tile; 128 is the most the kernels take"
    )


def block_d(head_dim: int) -> int:
    """Head dimension as the kernels hold it: the next power of two, masked above `head_dim`."""
    return max(16, 1 << (head_dim - 1).bit_length())
