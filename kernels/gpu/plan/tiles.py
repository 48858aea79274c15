"""Tile shapes of the Triton kernels: which a stretch of rows gets, and what a launch needs."""

from __future__ import annotations

from dataclasses import dataclass

SMALL_M = 16
CDNA3 = 942


@dataclass(frozen=True, slots=True)
class Tile:
    """One compiled shape of the attention kernels."""

    block_m: int  # packed rows (row, query head of the group)
    block_n: int  # keys
    num_warps: int
    num_stages: int  # of the loop over a run of slots

    @property
    def list_stages(self) -> int:
        """Stages of the loop over listed slots: two more load a block's slots before its keys."""
        return self.num_stages + 2 if self.num_stages > 2 else self.num_stages

    def rows(self, group_size: int) -> int:
        """Whole rows that fit; a row's heads are never split over two tiles."""
        return self.block_m // group_size


def pick_tile(
    packed_rows: int,
    head_dim: int,
    group_size: int = 1,
    *,
    itemsize: int = 2,
    quantized: bool = False,
    arch: int = 90,
) -> Tile:
    """The tile for a node with this many packed rows.

    `itemsize` is that of a query element and `arch` the compute capability (80, 90, 100), or 942
    for CDNA3. With three stages the next block of keys and values is on its way while one is
    computed; few rows take narrow blocks, so that several programs share a multiprocessor.
    """
    if group_size > 128:
        raise ValueError(f"{group_size} query heads a key head; one tile takes 128 at most")
    needed = max(min(packed_rows, 128), group_size)
    wide = head_dim > 128
    stages = 2 if arch == CDNA3 else 3
    if itemsize > 2:
        block_m = max(SMALL_M, _power_of_two(group_size))
        return Tile(block_m, 16 if wide or block_m > SMALL_M else 32, 4, 2)
    most = _most_rows(head_dim, quantized, arch)
    block_m = 64 if 64 < needed <= 96 else max(SMALL_M, _power_of_two(needed))
    block_m = max(min(block_m, most), _power_of_two(group_size))
    if block_m <= 32:
        return Tile(block_m, 64 if head_dim <= 64 else 32, 4, stages)
    num_warps = 8 if head_dim > 64 or block_m > 64 or quantized else 4
    return Tile(block_m, 32 if wide else 64, num_warps, stages)


def _most_rows(head_dim: int, quantized: bool, arch: int) -> int:
    """The tallest tile that compiles without spills and within 248 registers."""
    wide = head_dim > 128
    if arch == CDNA3:
        return 32 if head_dim > 64 else 64
    if wide and quantized:
        return 16
    if 100 <= arch < 120:
        return 64
    if 90 <= arch < 100:  # operands stay in shared memory; elsewhere they take registers
        return 64 if wide or quantized else 128
    if wide or (quantized and head_dim <= 64):
        return 32
    return 64 if quantized or head_dim > 64 else 128


def block_d(head_dim: int) -> int:
    """Head dimension as the kernels hold it: the next power of two, masked above `head_dim`."""
    return max(16, _power_of_two(head_dim))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One kind of layer and what it runs on."""

    group: int
    heads: int
    dim: int
    window: int | None
    deterministic: bool
    num_sms: int
    itemsize: int
    arch: int
    tile_rows: int

    def tile(self, packed_rows: int, *, quantized: bool = False) -> Tile:
        return pick_tile(
            packed_rows,
            self.dim,
            self.group,
            itemsize=self.itemsize,
            quantized=quantized,
            arch=self.arch,
        )

    def tiles(self, num_rows: int, *, cold: bool) -> tuple[Tile, Tile]:
        """The small tile, and the one for the node with the most rows."""
        if self.deterministic:  # one shape, so that company cannot change the arithmetic
            return self.tile(1), self.tile(1)
        most = max(num_rows, self.tile_rows) * self.group
        return self.tile(1), self.tile(max(most, SMALL_M + 1), quantized=cold)


def launches(
    group_size: int,
    head_dim: int,
    *,
    itemsize: int,
    arch: int,
    tile_rows: int,
    quantized: bool,
    deterministic: bool,
) -> tuple[tuple[Tile, bool], ...]:
    """(tile, quantised) of every list that plans for nodes of up to `tile_rows` rows can have."""
    shape = LayerShape(group_size, 1, head_dim, None, deterministic, 1, itemsize, arch, tile_rows)
    small, large = shape.tiles(tile_rows, cold=quantized)
    heights = dict.fromkeys((small.block_m, large.block_m))
    kinds = (False, True) if quantized else (False,)
    return tuple((shape.tile(height, quantized=kind), kind) for kind in kinds for height in heights)
