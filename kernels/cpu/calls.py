"""The pieces a CPU schedule is made of: which rows look at which keys, and how.

Ranked rows throughout. A unit is one call of the attention op; data only, no arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.cpu.split_kv import Pieces, cut

RESERVE = 64  # tokens a group can grow by before its schedule is rebuilt
STRETCH = 1024  # keys of evenly lying tails a call: more would leave the cache between heads


@dataclass(slots=True)
class Keys:
    """Tokens read together: a stretch of the pool seen in place, or a list of slots to gather."""

    start: int
    length: int
    index: Tensor | None = None  # [length] int32
    quantized: bool = False
    pieces: Pieces | None = None  # how threads share it

    def share(self, num_heads: int, packed_rows: int) -> Keys:
        """The same keys, cut for this machine's threads."""
        self.pieces = cut(self.length, num_heads, packed_rows)
        return self


def keys_of(slots: NDArray[np.int32], quantized: bool = False, *, gather: bool = False) -> Keys:
    """Keys over slots in position order, in place where they lie in one run."""
    first, length = int(slots[0]), len(slots)
    in_place = int(slots[-1]) - first == length - 1 and bool((np.diff(slots) == 1).all())
    if in_place and not gather:
        return Keys(first, length, None, quantized)
    return Keys(first, length, torch.from_numpy(np.array(slots, dtype=np.int32)), quantized)


@dataclass(slots=True)
class Full:
    """Every row of [begin, end) sees every key."""

    begin: int
    end: int
    keys: Keys


@dataclass(frozen=True, slots=True)
class Causal:
    """Rows [begin, end) are the keys' own tokens: row i sees keys 0..i."""

    begin: int
    end: int
    keys: Keys


@dataclass(frozen=True, slots=True)
class Masked:
    """Rows [begin, end) see what an additive mask lets through."""

    begin: int
    end: int
    keys: Keys
    mask: Tensor  # [rows, num_keys] float32, 0 or -inf
    blind: Tensor | None  # [rows] bool: rows that see nothing here


class Group:
    """Private tails of several branches, padded to one length and attended in one call.

    Each member has up to `num_queries` rows; padding repeats a key of the member's own, masked.
    """

    def __init__(
        self,
        ranks: NDArray[np.int64],
        rows: NDArray[np.int64],
        tails: list[NDArray[np.int32]],
        limits: NDArray[np.int64],
        longest_gather: int,
    ) -> None:
        """`rows` [members, num_queries] (-1: none); `limits` [members, num_queries, 2]: keys
        [low, high) of the member's own tail that each of its rows sees. Tails longer than
        `longest_gather` are only worth a group while they are read in place."""
        self.ranks = ranks
        self._longest_gather = longest_gather
        self.num_members, self.num_queries = rows.shape
        self.lengths = np.array([len(tail) for tail in tails], dtype=np.int64)
        self.length = int(self.lengths.max())
        capacity = self.length + RESERVE
        column, together = np.arange(capacity), np.concatenate(tails)
        heads = together[np.cumsum(self.lengths) - self.lengths]
        self._table = np.repeat(heads[:, None], capacity, axis=1)
        self._table[column < self.lengths[:, None]] = together
        seen = (column >= limits[..., :1]) & (column < limits[..., 1:])
        mask = np.where(seen, np.float32(0), np.float32(-np.inf))
        self._mask = torch.from_numpy(mask[:, None])  # [members, 1, num_queries, capacity]
        self._uneven = bool((self.lengths != self.lengths[0]).any())
        self._ragged = self.num_queries > 1 or self._uneven
        self._set_rows(rows)
        self._grown: list[NDArray[np.int64]] = []  # slots of all members, not in the table yet
        self.grid = self._grid()
        self._invalidate()

    def _set_rows(self, rows: NDArray[np.int64]) -> None:
        flat = rows.reshape(-1)
        real = flat >= 0
        self.begin, self.end = int(flat[real].min()), int(flat[real].max()) + 1
        self.query_rows: Tensor | None = None
        self.real: Tensor | None = None
        self.target_rows: Tensor | None = None
        self.in_order = np.array_equal(flat, np.arange(self.begin, self.end))
        if self.in_order:
            return
        self.query_rows = torch.from_numpy(np.where(rows < 0, rows[:, :1], rows).reshape(-1))
        # From the padded rows back to the real ones, in their order.
        found = np.flatnonzero(real)
        found = found[np.argsort(flat[found], kind="stable")]
        self.real = torch.from_numpy(found)
        if len(found) < self.end - self.begin:
            self.target_rows = torch.from_numpy(flat[found])

    def _invalidate(self) -> None:
        """Invalidate the index and the masks that layers have cached: the tails have grown."""
        self._index: Tensor | None = None
        self._masks: dict[tuple[torch.dtype, int], Tensor] = {}

    def mask(self, dtype: torch.dtype, group_size: int) -> Tensor | None:
        """Additive mask [members, 1, rows, length], or None when every row sees every key.

        With one query a member the row of the mask serves all heads of the group.
        """
        if not self._ragged:
            return None
        mask = self._masks.get((dtype, group_size))
        if mask is None:
            self._settle()
            mask = self._mask[..., : self.length].to(dtype)
            if self.num_queries > 1:
                mask = mask.repeat_interleave(group_size, dim=2)
            self._masks[dtype, group_size] = mask
        return mask

    @property
    def is_plain(self) -> bool:
        """Whether the tails are read in place, unmasked, for one row of each member in order."""
        return self.grid is not None and self.in_order and not self._ragged

    @property
    def index(self) -> Tensor:
        """Slots to gather, [members * length] int32; made when a layer first needs them."""
        if self._index is None:
            self._settle()
            table = np.ascontiguousarray(self._table[:, : self.length])
            self._index = torch.from_numpy(table.reshape(-1))
        return self._index

    def _grid(self) -> tuple[int, int, int] | None:
        """(first slot, slots between members, slots between keys) when the tails lie evenly.

        Branches that decode in step lie so, and can be read in place. A padded key never is: the
        slot it would fall on may be anybody's.
        """
        table = self._table[:, : self.length]
        if self._uneven or self.length < 2:
            return None
        first, across = int(table[0, 0]), 1
        if self.num_members > 1:
            across = int(table[1, 0]) - first
        along = int(table[0, 1]) - first
        if across < 1 or along < 1:
            return None
        column = first + along * np.arange(self.length)
        even = (table == column + across * np.arange(self.num_members)[:, None]).all()
        return (first, across, along) if even else None

    def advance(self, slots: NDArray[np.int64]) -> bool:
        """Append one token to every member (one query each); False when the schedule must be
        rebuilt: the reserve is used up, or long tails no longer lie evenly."""
        if self.length == self._table.shape[1]:
            return False
        new = slots[self.ranks]
        self._grown.append(new)
        self._invalidate()
        if self.grid is not None and not self._goes_on(new, *self.grid):
            self.grid = None
        self.length += 1
        if self.length == 2:
            self._settle()
            self.grid = self._grid()
        return self.grid is not None or self.length <= 2 * self._longest_gather

    def _goes_on(self, new: NDArray[np.int64], first: int, across: int, along: int) -> bool:
        """Whether new tokens lie evenly behind those before them."""
        start = first + along * self.length
        even = range(start, start + across * self.num_members, across)
        return bool(new.tolist() == list(even))

    def _settle(self) -> None:
        """Write down what the tails have grown by; tails read in place never need it."""
        member = np.arange(self.num_members)
        for new in self._grown:
            self._table[member, self.lengths] = new
            self._mask.numpy()[member, 0, 0, self.lengths] = 0.0
            self.lengths += 1
        self._grown.clear()


@dataclass(slots=True)
class Tail:
    """One decoding branch whose whole tail is read in place: one row, no gather, no mask."""

    rank: int
    unit: Full
    num_heads: int
    group_size: int

    def advance(self, slots: NDArray[np.int64]) -> bool:
        """Grow by one token when it lies just behind the last; else False."""
        keys = self.unit.keys
        if keys.index is not None or int(slots[self.rank]) != keys.start + keys.length:
            return False
        keys.length += 1
        keys.share(self.num_heads, self.group_size)
        return True


@dataclass(frozen=True, slots=True)
class Lone:
    """Keys of one call, read in place: one run of slots, or branches that lie evenly."""

    size: tuple[int, int, int, int]  # branches or pieces, key heads, keys, head dimension
    strides: tuple[int, int, int, int]  # of keys and values, in elements
    offset: int  # of the first key
    pieces: Pieces | None

    @classmethod
    def of_keys(cls, keys: Keys, num_heads: int, dim: int) -> Lone:
        """One branch over one run of slots."""
        pieces, width = keys.pieces, num_heads * dim
        count, step, length = 1, 0, keys.length
        if pieces is not None:
            count, step, length = pieces.count, pieces.step, pieces.length
        size, strides = (count, num_heads, length, dim), (step * width, dim, width, 1)
        return cls(size, strides, keys.start * width, pieces)

    @classmethod
    def of_group(cls, group: Group, num_heads: int, dim: int) -> Lone:
        """Branches whose tails lie evenly."""
        assert group.grid is not None
        first, across, along = group.grid
        width = num_heads * dim
        size = (group.num_members, num_heads, group.length, dim)
        return cls(size, (across * width, dim, along * width, 1), first * width, None)


Unit = Full | Causal | Masked | Group
Place = tuple[tuple[int, ...], tuple[int, ...], int]  # size, strides and offset, in elements


@dataclass(frozen=True, slots=True)
class FlashCall:
    """A unit whose rows and keys are read where they lie: one call of the op, nothing around it.

    `rows` is [members, kv_heads, rows, d] of the packed rows, `lses` the same without d.
    """

    rows: Place
    lses: Place
    keys: Lone
    mask: Tensor | None

    @classmethod
    def of(cls, unit: Unit, num_heads: int, group_size: int, dim: int) -> FlashCall | None:
        """The call of a unit, or None where it has to gather, permute or cut."""
        match unit:
            case Full(begin, end, keys):
                if keys.index is not None or keys.quantized or keys.pieces is not None:
                    return None
                place, mask = Lone.of_keys(keys, num_heads, dim), None
                num_members, num_queries = 1, end - begin
            case Group(grid=(_, _, _), in_order=True, length=length):
                mask = unit.mask(torch.float32, group_size)
                if mask is None and length > STRETCH:
                    return None
                place, begin = Lone.of_group(unit, num_heads, dim), unit.begin
                num_members, num_queries = unit.num_members, unit.num_queries
            case _:
                return None
        size = (num_members, num_heads, num_queries * group_size)
        strides = (size[2] * num_heads, 1, num_heads)
        offset = begin * group_size * num_heads
        rows = ((*size, dim), (*(stride * dim for stride in strides), 1), offset * dim)
        return cls(rows, (size, strides, offset), place, mask)


Planned = tuple[Unit, FlashCall | None]  # a unit, and its call where it is no more than one
