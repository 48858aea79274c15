"""Cut a topology into the units that GPU programs work on. Host NumPy, once a topology.

Every (row, visible key) is covered by exactly one unit. Units of a path are numbered in position
order, so a row's partials lie together and their merge has one order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radixlang.kernels.gpu.plan.tiles import SMALL_M, LayerShape, Tile
from radixlang.kernels.plan.topology import GRID, Topology, ranges

RESERVE = 64  # tokens a decoding tail can grow by before units are cut again
EXTEND_ROWS = 64  # packed rows of one branch from which one pass over its path is cheaper
FIELDS = 8  # slot index, keys, position, first row, rows, rank, base slot or -1, unused


@dataclass(frozen=True, slots=True)
class UnitList:
    """Units of one launch, longest first, row blocks of one chunk next to each other."""

    tile: Tile
    quantized: bool
    units: NDArray[np.int32]  # [num_units, FIELDS]


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """All launches of a layer. Rows: those of the tree kernel depth first, then extended ones."""

    slots: NDArray[np.int32]
    lists: tuple[UnitList, ...]  # at most: small and large tiles, exact and quantised
    extend: UnitList | None
    row_token: NDArray[np.int32]  # [num_tokens] flat row
    row_pos: NDArray[np.int32]  # [num_tokens]
    row_first: NDArray[np.int32]  # [num_tokens] rank of the first unit that matters to the row
    row_part: NDArray[np.int32]  # [num_tokens] its first partial
    row_count: NDArray[np.int32]  # [num_tokens] its partials; 1: written at once, none stored
    tail_unit: NDArray[np.int32]  # [num_tokens] unit that grows, counted through `lists`
    num_tree_rows: int
    num_parts: int
    masked: bool  # a row may see less than all keys of one of its units


def is_masked(*, is_decode: bool, window: int | None, deterministic: bool) -> bool:
    """Whether units need a mask beside their number of keys.

    A row that decodes sees every key of every unit of its path, its own new one included. With
    `deterministic` the same code runs for it whatever its company does.
    """
    return not is_decode or window is not None or deterministic


def build_units(
    topology: Topology,
    *,
    group_size: int,
    num_kv_heads: int,
    head_dim: int,
    window: int | None = None,
    deterministic: bool = False,
    num_sms: int = 132,
    itemsize: int = 2,
    arch: int = 90,
    tile_rows: int = 0,
    quantized: bool = False,
) -> UnitPlan:
    """Cut the topology for one kind of layer.

    `num_sms` sets how finely the work is split; `itemsize` (bytes of a query element) and `arch`
    (compute capability, 80 to 100) the tiles, which are at least those for nodes of `tile_rows`
    rows, and with `quantized` those for int8 even if there is none: a captured graph needs the
    same tiles for every plan.
    """
    shape = LayerShape(
        group_size,
        num_kv_heads,
        head_dim,
        window,
        deterministic,
        num_sms,
        itemsize,
        arch,
        tile_rows,
    )
    return _Cutter(topology, shape, quantized).cut()


class _Cutter:
    def __init__(self, topology: Topology, shape: LayerShape, quantized: bool) -> None:
        self.topology = topology
        self.shape = shape
        self.quantized = quantized
        self.group = shape.group
        self.window = shape.window
        self.deterministic = shape.deterministic
        self.extended = self._extended()
        tree = np.where(self.extended, 0, topology.num_queries)
        self.offset = np.concatenate([[0], np.cumsum(tree)])  # tree rows by rank
        self.num_tree_rows = int(self.offset[-1])
        branch = topology.row_offset[:-1]
        in_tree, in_one_pass = ~self.extended, self.extended
        counts = topology.num_queries
        self.rows = np.concatenate(  # ranked row of every row here
            [
                ranges(branch[in_tree], counts[in_tree]),
                ranges(branch[in_one_pass], counts[in_one_pass]),
            ]
        )
        self.pos = topology.row_positions()[self.rows]

    def _extended(self) -> NDArray[np.bool_]:
        """Branches with enough new tokens for a pass of their own, and no int8 on their path."""
        topology = self.topology
        many = topology.num_queries * self.group >= EXTEND_ROWS
        for node in np.flatnonzero(topology.node_quantized).tolist():
            many[int(topology.node_first[node]) : int(topology.node_last[node])] = False
        return many

    def cut(self) -> UnitPlan:
        topology = self.topology
        live = self.offset[topology.node_last] > self.offset[topology.node_first]
        nodes = np.flatnonzero(live)
        first_row = self.offset[topology.node_first[nodes]]
        num_rows = self.offset[topology.node_last[nodes]] - first_row
        cold = self.quantized or bool(topology.node_quantized.any())
        tiles = self.shape.tiles(int(num_rows.max(initial=1)), cold=cold)
        small = (num_rows * self.group <= SMALL_M) | (tiles[0] == tiles[1])
        per_block = np.where(small, tiles[0].rows(self.group), tiles[1].rows(self.group))
        blocks = -(-num_rows // per_block)
        length, start = topology.node_length[nodes], topology.node_start[nodes]
        chunk = self._chunk_length(length, num_rows, blocks, small, tiles)
        phase = start % chunk if self.deterministic else np.zeros_like(start)
        chunks = -(-(length + phase) // chunk)
        rank = self._ranks(nodes, chunks)
        self.total = np.zeros(len(topology.node_length), dtype=np.int64)
        self.total[nodes] = rank + chunks

        node = np.repeat(np.arange(len(nodes)), chunks * blocks)
        local = ranges(np.zeros_like(chunks), chunks * blocks)
        which, block = local // blocks[node], local % blocks[node]
        low = np.maximum(which * chunk[node] - phase[node], 0)
        high = np.minimum((which + 1) * chunk[node] - phase[node], length[node])
        row = first_row[node] + block * per_block[node]
        units = np.zeros((len(node), FIELDS), dtype=np.int64)
        units[:, 0] = topology.node_offset[nodes][node] + low
        units[:, 1] = high - low
        units[:, 2] = start[node] + low
        units[:, 3] = row
        units[:, 4] = np.minimum(per_block[node], first_row[node] + num_rows[node] - row)
        units[:, 5] = rank[node] + which
        units[:, 6] = self._bases(units)
        return self._assemble(units, small[node], topology.node_quantized[nodes][node], tiles)

    def _chunk_length(
        self,
        length: NDArray[np.int64],
        num_rows: NDArray[np.int64],
        blocks: NDArray[np.int64],
        small: NDArray[np.bool_],
        tiles: tuple[Tile, Tile],
    ) -> NDArray[np.int64]:
        """Keys a unit: about four units an SM, and enough to pay for a partial."""
        if self.deterministic:
            return np.full_like(length, GRID)
        even = int((length * blocks).sum()) * self.shape.heads // (4 * self.shape.num_sms)
        block_m = np.where(small, tiles[0].block_m, tiles[1].block_m)
        least = np.maximum(256, 8 * np.minimum(num_rows * self.group, block_m))
        chunk = np.clip(even, least, 4096)
        block_n = tiles[0].block_n
        rounded: NDArray[np.int64] = -(-chunk // block_n) * block_n
        return rounded

    def _ranks(self, nodes: NDArray[np.int64], chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Units of the path above each node."""
        count = [0] * len(self.topology.node_length)
        parents = self.topology.node_parent[nodes].tolist()
        rank = []
        for node, above, own in zip(nodes.tolist(), parents, chunks.tolist(), strict=True):
            before = count[above] if above >= 0 else 0
            rank.append(before)
            count[node] = before + own
        return np.array(rank, dtype=np.int64)

    def _bases(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """First slot of units whose slots are one run, else -1."""
        slots = self.topology.slots
        breaks = np.flatnonzero(slots[1:] - slots[:-1] != 1)  # runs end here
        begin, end = units[:, 0], units[:, 0] + units[:, 1] - 1
        one_run = np.searchsorted(breaks, begin) == np.searchsorted(breaks, end)
        bases: NDArray[np.int64] = np.where(one_run, slots[begin], -1)
        return bases

    def _assemble(
        self,
        units: NDArray[np.int64],
        small: NDArray[np.bool_],
        quantized: NDArray[np.bool_],
        tiles: tuple[Tile, Tile],
    ) -> UnitPlan:
        first = self._first_ranks(units)
        if self.window is not None:
            alive = self._alive(units, first)
            units, small, quantized = units[alive], small[alive], quantized[alive]
        slots, tail = self._reserve(units)
        lists, tail_unit = self._split(units, small, quantized, tiles, tail)
        slots, extend = self._extend(slots)
        leaf = self.topology.branch_node
        total = np.repeat(self.total[leaf], np.where(self.extended, 0, self.topology.num_queries))
        count = total - first
        stored = np.where(count > 1, count, 0)
        one_pass = len(self.rows) - self.num_tree_rows
        order = self.topology.row_permutation()
        return UnitPlan(
            slots=slots,
            lists=lists,
            extend=extend,
            row_token=_int32(self.rows if order is None else order[self.rows]),
            row_pos=_int32(self.pos),
            row_first=_extended(first, one_pass, 0),
            row_part=_extended(np.cumsum(stored) - stored, one_pass, 0),
            row_count=_extended(count, one_pass, 1),
            tail_unit=_int32(tail_unit),
            num_tree_rows=self.num_tree_rows,
            num_parts=int(stored.sum()),
            masked=is_masked(
                is_decode=self.topology.num_rows == self.topology.num_branches,
                window=self.window,
                deterministic=self.deterministic,
            ),
        )

    def _pairs(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(unit, row) for every row of every unit."""
        return np.repeat(np.arange(len(units)), units[:, 4]), ranges(units[:, 3], units[:, 4])

    def _first_ranks(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Units of a row's path that its window has passed: they are never read for it."""
        if self.window is None:
            return np.zeros(self.num_tree_rows, dtype=np.int64)
        unit, row = self._pairs(units)
        passed = (units[:, 2] + units[:, 1])[unit] <= self.pos[row] - self.window + 1
        return np.bincount(row[passed], minlength=self.num_tree_rows)

    def _alive(self, units: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.bool_]:
        unit, row = self._pairs(units)
        wanted = units[unit, 5] >= first[row]
        return np.bincount(unit[wanted], minlength=len(units)) > 0

    def _reserve(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Copy the last chunk of decoding tails to where it can grow; which units those are."""
        topology = self.topology
        slots = topology.slots
        if topology.num_rows != topology.num_branches or self.extended.any():
            return slots, np.zeros(0, dtype=np.int64)
        last = self.total[topology.branch_node][units[:, 3]] - 1
        tail = np.flatnonzero((units[:, 4] == 1) & (units[:, 5] == last))
        tail = tail[np.argsort(units[tail, 3], kind="stable")]  # one a row, in row order
        lengths = units[tail, 1]
        room = lengths + RESERVE
        begin = len(slots) + np.cumsum(room) - room
        grown = np.zeros(int(room.sum()), dtype=np.int32)
        grown[ranges(begin - len(slots), lengths)] = slots[ranges(units[tail, 0], lengths)]
        units[tail, 0] = begin
        return np.concatenate([slots, grown]), tail

    def _split(
        self,
        units: NDArray[np.int64],
        small: NDArray[np.bool_],
        quantized: NDArray[np.bool_],
        tiles: tuple[Tile, Tile],
        tail: NDArray[np.int64],
    ) -> tuple[tuple[UnitList, ...], NDArray[np.int64]]:
        """Lists in a fixed order: exact small, exact large, then the quantised ones."""
        lists, place, begin = [], np.zeros(len(units), dtype=np.int64), 0
        for quant in (False, True):
            for tile, of_tile in ((tiles[0], small), (tiles[1], ~small)):
                mine = np.flatnonzero(of_tile & (quantized == quant))
                if not len(mine):
                    continue
                mine = mine[np.argsort(-units[mine, 1], kind="stable")]
                place[mine] = begin + np.arange(len(mine))
                begin += len(mine)
                own = self.shape.tile(tile.block_m, quantized=quant)
                lists.append(UnitList(own, quant, _int32(units[mine])))
        return tuple(lists), place[tail]

    def _extend(self, slots: NDArray[np.int32]) -> tuple[NDArray[np.int32], UnitList | None]:
        """Row blocks over the whole path of every branch with many new tokens."""
        ranks = np.flatnonzero(self.extended).tolist()
        if not ranks:
            return slots, None
        topology = self.topology
        most = int(topology.num_queries[ranks].max()) * self.group
        tile = self.shape.tile(EXTEND_ROWS if self.deterministic else most)
        per_block = tile.rows(self.group)
        parts, units, end, row = [slots], [], len(slots), self.num_tree_rows
        for rank in ranks:
            path = self._path(rank)
            count, start = int(topology.num_queries[rank]), int(topology.query_start[rank])
            first_pos = start + count - len(path)
            base = int(path[0]) if bool((np.diff(path) == 1).all()) else -1
            low = np.arange(0, count, per_block)
            high = np.minimum(low + per_block, count)
            block = np.zeros((len(low), FIELDS), dtype=np.int64)
            block[:, 0], block[:, 1], block[:, 2] = end, start + high - first_pos, first_pos
            block[:, 3], block[:, 4], block[:, 6] = row + low, high - low, base
            units.append(block)
            parts.append(path)
            end, row = end + len(path), row + count
        stacked = np.concatenate(units)
        stacked = stacked[np.argsort(-stacked[:, 1], kind="stable")]
        return np.concatenate(parts), UnitList(tile, False, _int32(stacked))

    def _path(self, rank: int) -> NDArray[np.int32]:
        topology = self.topology
        on_path = (topology.node_first <= rank) & (rank < topology.node_last)
        nodes = np.flatnonzero(on_path).tolist()
        return np.concatenate([topology.node_slots(node) for node in nodes])


def _extended(values: NDArray[np.int64], count: int, fill: int) -> NDArray[np.int32]:
    """Values of the tree's rows, and `count` times `fill` for the rows of one pass."""
    return np.concatenate([values, np.full(count, fill)]).astype(np.int32)


def _int32(array: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.ascontiguousarray(array, dtype=np.int32)
