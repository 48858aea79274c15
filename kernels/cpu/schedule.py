"""Turn a plan into the calls a layer makes on the CPU: one a shared node, one for short tails.

`first` units cover every row exactly once and always with the row's own token, so what they
give is finite; `rest` units are merged into it one by one.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from numpy.typing import NDArray

from radixlang.kernels.cpu.calls import (
    STRETCH,
    Causal,
    FlashCall,
    Full,
    Group,
    Keys,
    Lone,
    Masked,
    Tail,
    Unit,
    keys_of,
)
from radixlang.kernels.plan.plan import AttentionPlan

SMALL_QUERIES = 16  # branches with up to this many new tokens share one padded call
IN_PLACE_BYTES = 196_608  # keys in one run that are worth a call of their own
APART_BYTES = 1_572_864  # a decoding tail in one run this long is not gathered with others
GATHER_BYTES = 1 << 25  # keys gathered for one call, which bounds its memory
PADDED_KEYS = 16_384  # that padded rows may look at before another call costs less
MASK_ROWS = 512  # rows of one masked call, which bounds its mask


class CpuSchedule:
    """The units of one layer, in the order they run."""

    def __init__(
        self, plan: AttentionPlan, first: list[Unit], rest: list[Unit], growing: list[Group | Tail]
    ) -> None:
        self.first = first
        self.rest = rest
        self._growing = growing  # what `advance` has to move; empty: cannot advance
        self._heads = (plan.num_kv_heads, plan.head_dim)
        self._group_size = plan.group_size
        self._may_be_alone = len(first) == 1 and not rest and plan.is_decode
        self._may_be_alone &= plan.row_order is None
        self.planned_rest = [(unit, self._call(unit)) for unit in rest]  # none of them grows
        self._prepare()

    def _prepare(self) -> None:
        """What all layers share: units, and the call of each that is no more than one."""
        self.alone = self._lone()
        self.two_partials = self._two_partials()
        is_alone = self.alone is not None
        self.planned_first = [(each, None if is_alone else self._call(each)) for each in self.first]

    def _call(self, unit: Unit) -> FlashCall | None:
        heads, dim = self._heads
        return FlashCall.of(unit, heads, self._group_size, dim)

    def _two_partials(self) -> tuple[Unit, FlashCall | None] | None:
        """The unit of all rows and the call of shared keys, where these two are the whole step."""
        own = self.first[0]
        if len(self.first) > 1 or len(self.rest) > 1 or not isinstance(own, Group | Causal):
            return None
        if isinstance(own, Group) and (own.target_rows is not None or own.length > STRETCH):
            return None
        if not self.rest:
            return own, None
        shared, call = self.planned_rest[0]
        covers_all = shared.begin == own.begin and shared.end == own.end
        return (own, call) if call is not None and covers_all else None

    def _lone(self) -> Lone | None:
        """The one call that is all of the step, or None where there is more to do."""
        unit = self.first[0]
        if not self._may_be_alone:
            return None
        if isinstance(unit, Full) and unit.end - unit.begin == 1 and unit.keys.index is None:
            return Lone.of_keys(unit.keys, *self._heads)
        if isinstance(unit, Group) and unit.is_plain and unit.length <= STRETCH:
            return Lone.of_group(unit, *self._heads)
        return None

    def advance(self, ranked_slots: NDArray[np.int64]) -> bool:
        """Take one more token a branch; False when the schedule must be rebuilt."""
        if not self._growing or not all(unit.advance(ranked_slots) for unit in self._growing):
            return False
        self._prepare()
        return True


def build_schedule(plan: AttentionPlan, window: int | None) -> CpuSchedule:
    """The schedule of layers with this window (None: they see everything)."""
    return _Builder(plan, window).build()


_Tail = tuple[int, NDArray[np.int32], int]  # rank, slots, first position


class _Builder:
    def __init__(self, plan: AttentionPlan, window: int | None) -> None:
        self.plan = plan
        self.topology = plan.topology
        self.window = window
        token_bytes = plan.num_kv_heads * plan.head_dim * 4
        self.run = max(64, IN_PLACE_BYTES // token_bytes)
        self.apart = max(64, APART_BYTES // token_bytes)
        self.most_gathered = GATHER_BYTES // token_bytes
        self.positions = self.topology.row_positions() + plan.num_steps
        self.first: list[Unit] = []
        self.rest: list[Unit] = []
        self.growing: list[Group | Tail] = []
        self.lone: list[_Tail] = []
        self.small: list[_Tail] = []

    def build(self) -> CpuSchedule:
        if self.plan.deterministic:
            for rank in range(self.topology.num_branches):
                self._whole_path(rank)
        else:
            self._shared_nodes()
            self._tails()
            self._lone_tails()
            self._groups()
        keep = self.window is None and self.plan.is_decode
        return CpuSchedule(self.plan, self.first, self.rest, self.growing if keep else [])

    def _lowest(self, begin: int, end: int) -> NDArray[np.int64]:
        """First visible position of rows [begin, end)."""
        if self.window is None:
            return np.zeros(end - begin, dtype=np.int64)
        return np.maximum(self.positions[begin:end] - self.window + 1, 0)

    def _shared_nodes(self) -> None:
        topology = self.topology
        private = np.zeros(len(topology.node_length), dtype=np.bool_)
        private[topology.branch_node] = True
        for node in np.flatnonzero(~private).tolist():
            begin = int(topology.row_offset[topology.node_first[node]])
            end = int(topology.row_offset[topology.node_last[node]])
            slots, start = topology.node_slots(node), int(topology.node_start[node])
            self._see_before(begin, end, slots, start, bool(topology.node_quantized[node]))

    def _see_before(
        self, begin: int, end: int, slots: NDArray[np.int32], start: int, quantized: bool = False
    ) -> None:
        """Rows look at keys that all lie before them: whole, trimmed, or masked by the window."""
        low = self._lowest(begin, end)
        least, most = int(low.min()), int(low.max())
        if most <= max(start, least):
            self._see_all(begin, end, slots[max(0, least - start) :], quantized)
            return
        for piece, last in self._row_pieces(begin, end):
            self._see_some(piece, last, slots, start, quantized)

    def _row_pieces(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Rows cut so that a piece has one branch's rows, unless every branch has just one."""
        if self.plan.is_decode:
            return [(begin, end)]
        borders = self.topology.row_offset
        inside = borders[(borders > begin) & (borders < end)].tolist()
        edges = [begin, *inside, end]
        return [
            (low, min(low + MASK_ROWS, high))
            for start, high in itertools.pairwise(edges)
            for low in range(start, high, MASK_ROWS)
        ]

    def _see_some(
        self, begin: int, end: int, slots: NDArray[np.int32], start: int, quantized: bool
    ) -> None:
        low = self._lowest(begin, end)
        skip = max(0, int(low.min()) - start)
        if skip >= len(slots):
            return
        positions = np.arange(start + skip, start + len(slots))
        mask = positions[None, :] >= low[:, None]
        keys = keys_of(slots[skip:], quantized)
        self.rest.append(_masked(begin, end, keys, mask))

    def _see_all(self, begin: int, end: int, slots: NDArray[np.int32], quantized: bool) -> None:
        """Long runs in place, what is left gathered; the order of keys does not matter."""
        if len(slots) == 0:
            return
        runs, scattered = split_runs(slots, self.run)
        for part in (*runs, scattered):
            if len(part):
                self.rest.append(self._full(begin, end, part, quantized))

    def _full(
        self, begin: int, end: int, slots: NDArray[np.int32], quantized: bool = False
    ) -> Full:
        rows = (end - begin) * self.plan.group_size
        return Full(begin, end, keys_of(slots, quantized).share(self.plan.num_kv_heads, rows))

    def _tails(self) -> None:
        """Every tail to its place; one new token on a short tail, the most of them, has but one."""
        topology = self.topology
        start = topology.node_start[topology.branch_node]
        length = topology.node_length[topology.branch_node] + self.plan.num_steps
        skip = np.zeros_like(start)
        if self.window is not None:  # what the first row's window has passed
            lowest = self.positions[topology.row_offset[:-1]] - self.window + 1
            skip = np.maximum(lowest - start, 0)
        short = (topology.num_queries == 1) & (length - skip < self.apart)
        short &= topology.num_branches > 2
        places = zip(short.tolist(), start.tolist(), skip.tolist(), strict=True)
        for rank, (is_short, begin, passed) in enumerate(places):
            if is_short:
                self.small.append((rank, self.plan.tail_slots(rank)[passed:], begin + passed))
            else:
                self._tail(rank)

    def _tail(self, rank: int) -> None:
        begin, end = (int(row) for row in self.topology.row_offset[rank : rank + 2])
        slots = self.plan.tail_slots(rank)
        start = int(self.topology.node_start[self.topology.branch_node[rank]])
        if end - begin > SMALL_QUERIES:
            self._long_tail(begin, end, slots, start)
            return
        skip = max(0, int(self._lowest(begin, end)[0]) - start)
        slots, start = slots[skip:], start + skip
        if self._alone(slots):
            if end - begin == 1:
                self.lone.append((rank, slots, start))
                return
            if self.window is None:
                self.first.append(self._group([(rank, slots, start)]))
                return
        if end - begin == 1 or self.window is None:
            slots, start = self._leave_runs(begin, end, slots, start)
        self.small.append((rank, slots, start))

    def _alone(self, slots: NDArray[np.int32]) -> bool:
        """Whether a tail is worth a call of its own: one run, and long or lonely."""
        if len(slots) < self.apart and self.topology.num_branches > 2:
            return False
        return int(slots[-1]) - int(slots[0]) == len(slots) - 1 and keys_of(slots).index is None

    def _lone_tails(self) -> None:
        """Long tails: one call together when they lie evenly, else one each."""
        lengths = {len(slots) for _, slots, _ in self.lone}
        if len(self.lone) > 1 and len(lengths) == 1:
            group = self._group(self.lone)
            if group.grid is not None:
                self.first.append(group)
                self.growing.append(group)
                return
        for rank, slots, _ in self.lone:
            row = int(self.topology.row_offset[rank])
            unit = self._full(row, row + 1, slots)
            self.first.append(unit)
            self.growing.append(Tail(rank, unit, self.plan.num_kv_heads, self.plan.group_size))

    def _leave_runs(
        self, begin: int, end: int, slots: NDArray[np.int32], start: int
    ) -> tuple[NDArray[np.int32], int]:
        """Read the long runs at a tail's head in place; return what is left and where it starts."""
        count = end - begin
        edges = np.flatnonzero(np.diff(slots[:-count]) != 1) + 1
        taken = 0
        for edge in [*edges.tolist(), len(slots) - count]:
            if edge - taken < self.apart:
                break
            self.rest.append(self._full(begin, end, slots[taken:edge]))
            taken = edge
        return slots[taken:], start + taken

    def _long_tail(self, begin: int, end: int, slots: NDArray[np.int32], start: int) -> None:
        """Many new tokens: a causal call for them, and what is before them as any other node."""
        count = end - begin
        if self.window is not None and count > self.window:
            self._banded(begin, end, slots, start)
            return
        before = len(slots) - count
        self.first.append(Causal(begin, end, keys_of(slots[before:])))
        if before:
            self._see_before(begin, end, slots[:before], start)

    def _banded(self, begin: int, end: int, slots: NDArray[np.int32], start: int) -> None:
        """Many new tokens, few keys each: blocks of rows, each with its own stretch of keys."""
        for low in range(begin, end, MASK_ROWS):
            high = min(low + MASK_ROWS, end)
            lowest = self._lowest(low, high)
            here = self.positions[low:high]
            skip = max(0, int(lowest[0]) - start)
            stop = int(here[-1]) + 1 - start
            positions = np.arange(start + skip, start + stop)
            mask = (positions >= lowest[:, None]) & (positions <= here[:, None])
            self.first.append(_masked(low, high, keys_of(slots[skip:stop]), mask))

    def _groups(self) -> None:
        """Padded calls for short tails; lengths more than a factor of two apart stay apart."""
        buckets: dict[int, list[_Tail]] = {}
        for entry in self.small:
            size = max(32, len(entry[1]) - 1).bit_length()
            buckets.setdefault(size, []).append(entry)
        for entries in itertools.chain.from_iterable(map(self._by_rows, buckets.values())):
            longest = max(len(slots) for _, slots, _ in entries)
            size = max(1, self.most_gathered // longest)
            for begin in range(0, len(entries), size):
                group = self._group(entries[begin : begin + size])
                self.first.append(group)
                self.growing.append(group)

    def _by_rows(self, entries: list[_Tail]) -> list[list[_Tail]]:
        """Tails of one row and of several apart, unless padding all to several costs less."""
        counts = self.topology.num_queries
        one = [entry for entry in entries if counts[entry[0]] == 1]
        several = [entry for entry in entries if counts[entry[0]] > 1]
        if not one or not several:
            return [entries]
        num_padded = len(one) * (max(int(counts[rank]) for rank, _, _ in several) - 1)
        longest = max(len(slots) for _, slots, _ in entries)
        return [entries] if num_padded * longest <= PADDED_KEYS else [one, several]

    def _group(self, entries: list[_Tail]) -> Group:
        ranks = np.array([rank for rank, _, _ in entries], dtype=np.int64)
        counts = self.topology.num_queries[ranks]
        query = np.arange(int(counts.max()))
        begin = self.topology.row_offset[ranks]
        rows = np.where(query < counts[:, None], begin[:, None] + query, -1)
        starts = np.array([start for _, _, start in entries], dtype=np.int64)[:, None]
        place = self.positions[np.maximum(rows, begin[:, None])]
        low = place * 0 if self.window is None else place - (self.window - 1)
        limits = np.stack([low - starts, place + 1 - starts], axis=-1)
        return Group(ranks, rows, [slots for _, slots, _ in entries], limits, self.apart)

    def _whole_path(self, rank: int) -> None:
        """Deterministic: one branch, its whole path gathered, the same calls in any company."""
        begin, end = (int(row) for row in self.topology.row_offset[rank : rank + 2])
        *before, (slots, start, _) = self._path_pieces(rank)
        for piece, first, quantized in before:
            self._exact(begin, end, piece, first, quantized, into=self.rest)
        self._exact(begin, end, slots, start, False, into=self.first)

    def _path_pieces(self, rank: int) -> list[tuple[NDArray[np.int32], int, bool]]:
        """The path as (slots, first position, quantised), neighbours of one precision merged."""
        topology = self.topology
        on_path = (topology.node_first <= rank) & (rank < topology.node_last)
        pieces: list[tuple[NDArray[np.int32], int, bool]] = []
        for node in np.flatnonzero(on_path).tolist():
            last = node == int(topology.branch_node[rank])
            slots = self.plan.tail_slots(rank) if last else topology.node_slots(node)
            quantized = bool(topology.node_quantized[node])
            if pieces and pieces[-1][2] == quantized:
                joined, start, _ = pieces[-1]
                pieces[-1] = (np.concatenate([joined, slots]), start, quantized)
            else:
                pieces.append((slots, int(topology.node_start[node]), quantized))
        return pieces

    def _exact(
        self,
        begin: int,
        end: int,
        slots: NDArray[np.int32],
        start: int,
        quantized: bool,
        *,
        into: list[Unit],
    ) -> None:
        for low in range(begin, end, MASK_ROWS):
            high = min(low + MASK_ROWS, end)
            lowest, here = self._lowest(low, high), self.positions[low:high]
            skip = max(0, int(lowest[0]) - start)
            stop = min(len(slots), int(here[-1]) + 1 - start)
            if skip >= stop:
                continue
            positions = np.arange(start + skip, start + stop)
            mask = (positions >= lowest[:, None]) & (positions <= here[:, None])
            keys = keys_of(slots[skip:stop], quantized, gather=True)
            whole = bool(mask.all())
            into.append(Full(low, high, keys) if whole else _masked(low, high, keys, mask))


def _masked(begin: int, end: int, keys: Keys, visible: NDArray[np.bool_]) -> Masked:
    mask = np.where(visible, np.float32(0), np.float32(-np.inf))
    blind = ~visible.any(axis=1)
    return Masked(
        begin,
        end,
        keys,
        torch.from_numpy(mask),
        torch.from_numpy(blind) if blind.any() else None,
    )


def split_runs(
    slots: NDArray[np.int32], least: int
) -> tuple[list[NDArray[np.int32]], NDArray[np.int32]]:
    """Runs of consecutive slots, each at least `least` long, and every other slot."""
    edges = np.flatnonzero(np.diff(slots) != 1) + 1
    if len(edges) == 0:
        return [slots], slots[:0]
    pieces = np.split(slots, edges)
    runs = [piece for piece in pieces if len(piece) >= least]
    others = [piece for piece in pieces if len(piece) < least]
    return runs, np.concatenate(others) if others else slots[:0]
