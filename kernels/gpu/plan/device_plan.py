"""A unit plan in device memory: one int32 buffer of fixed layout, refilled by one copy.

A captured CUDA graph keeps reading the same addresses, so capacities are fixed when the buffer is
made and every count that may change is itself in the buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from radixlang.kernels.gpu.plan.step_buffer import StepBuffer
from radixlang.kernels.gpu.plan.tiles import Tile
from radixlang.kernels.gpu.plan.work_units import FIELDS, UnitList, UnitPlan

HEADER = 16  # units of each list, of the extend list, tree rows, tokens; rest unused
EXTEND_AT, ROWS_AT, TOKENS_AT = 8, 9, 10


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most a buffer can hold, and what its launches are compiled for.

    Attributes:
        lists: launches of the tree kernel: tile, quantised, number of units.
        extend: that of the one-pass kernel: tile, number of units, all of them runs of slots.
        masked: a row may see less than all keys of a unit: with several new tokens, or a window.
    """

    num_tokens: int
    num_slots: int
    num_parts: int
    lists: tuple[tuple[Tile, bool, int], ...]
    extend: tuple[Tile, int, bool] | None
    masked: bool

    @classmethod
    def of(cls, plan: UnitPlan) -> Capacity:
        """Just enough for one plan."""
        return cls(
            num_tokens=len(plan.row_token),
            num_slots=len(plan.slots),
            num_parts=plan.num_parts,
            lists=tuple((part.tile, part.quantized, len(part.units)) for part in plan.lists),
            extend=None if plan.extend is None else _extend_of(plan.extend),
            masked=plan.masked,
        )

    @classmethod
    def for_decode(
        cls,
        tiles: tuple[tuple[Tile, bool], ...],
        *,
        num_tokens: int,
        num_slots: int,
        num_units: int,
        num_parts: int,
        masked: bool,
    ) -> Capacity:
        """Room for every decode plan up to these sizes whose launches have these tiles."""
        lists = tuple((tile, quantized, num_units) for tile, quantized in tiles)
        return cls(num_tokens, num_slots, max(1, num_parts), lists, None, masked)


class CapacityError(ValueError):
    """The plan does not fit the buffer; capture again with a larger capacity."""


class DevicePlan:
    """Where the kernels find a plan; a new one is put in the same place.

    It lies in a buffer of its own, or from `start` on in one that holds more of a step.
    """

    def __init__(self, capacity: Capacity, buffer: StepBuffer, start: int = 0) -> None:
        self.capacity = capacity
        self._buffer = buffer
        self._sections = {}
        for name, length in _lengths(capacity):
            self._sections[name] = slice(start, start + length)
            start += _aligned(length)
        self.views = {name: buffer.device[part] for name, part in self._sections.items()}

    @classmethod
    def alone(cls, plan: UnitPlan, device: torch.device) -> DevicePlan:
        """A plan in a buffer of its own that holds just this."""
        capacity = Capacity.of(plan)
        made = cls(capacity, StepBuffer(cls.size_of(capacity), device))
        made.fill(plan)
        made._buffer.send()
        return made

    @staticmethod
    def size_of(capacity: Capacity) -> int:
        """Words of a buffer that a plan takes."""
        return sum(_aligned(length) for _, length in _lengths(capacity))

    @property
    def list_starts(self) -> list[int]:
        """First unit of every list within `units`."""
        counts = [count for _, _, count in self.capacity.lists]
        return [sum(counts[:index]) for index in range(len(counts))]

    def fill(self, plan: UnitPlan) -> None:
        """Replace what the host's side of the buffer holds, to be sent by its owner.

        Raises:
            CapacityError: the plan does not fit; the buffer is as it was.
        """
        matched = self._match(plan)
        header = self._buffer.host[self._sections["header"]]
        header[:] = 0
        header[ROWS_AT], header[TOKENS_AT] = plan.num_tree_rows, len(plan.row_token)
        begun, moved = 0, []
        for index, part in sorted(matched.items()):
            start = self.list_starts[index]
            header[index] = len(part.units)
            self._fill("units", part.units.reshape(-1), start * FIELDS)
            moved.append((begun, len(part.units), start))
            begun += len(part.units)
        if plan.extend is not None:
            header[EXTEND_AT] = len(plan.extend.units)
            self._fill("extend", plan.extend.units.reshape(-1))
        for name in ("row_token", "row_pos", "row_first", "row_part", "row_count", "slots"):
            self._fill(name, getattr(plan, name))
        tail = plan.tail_unit.copy()
        for begin, count, start in moved:
            mine = (plan.tail_unit >= begin) & (plan.tail_unit < begin + count)
            tail[mine] += start - begin
        self._fill("tail_unit", tail)

    def _match(self, plan: UnitPlan) -> dict[int, UnitList]:
        """Which of the captured launches takes which list."""
        matched: dict[int, UnitList] = {}
        for part in plan.lists:
            index = next(
                (
                    at
                    for at, (tile, quantized, room) in enumerate(self.capacity.lists)
                    if tile == part.tile
                    and quantized == part.quantized
                    and room >= len(part.units)
                    and at not in matched
                ),
                None,
            )
            if index is None:
                raise CapacityError(
                    f"no launch of this buffer takes {len(part.units)} units of {part.tile}, "
                    f"quantised {part.quantized}; it has {self.capacity.lists}. Capture again"
                )
            matched[index] = part
        self._check_room(plan)
        return matched

    def _check_room(self, plan: UnitPlan) -> None:
        extend = None if plan.extend is None else _extend_of(plan.extend)
        have = self.capacity
        if extend and (
            have.extend is None or have.extend[0] != extend[0] or have.extend[1] < extend[1]
        ):
            raise CapacityError(f"the plan extends with {extend}, the buffer has {have.extend}")
        for name, needed, room in (
            ("tokens", len(plan.row_token), have.num_tokens),
            ("slots", len(plan.slots), have.num_slots),
            ("partials", plan.num_parts, have.num_parts),
        ):
            if needed > room:
                raise CapacityError(
                    f"the plan has {needed} {name} and the buffer room for {room}; "
                    "capture again with a larger capacity"
                )

    def _fill(self, name: str, values: np.ndarray, at: int = 0) -> None:
        begin = self._sections[name].start + at
        self._buffer.host[begin : begin + len(values)] = values

    def header(self, index: int) -> Tensor:
        """A device scalar of the header."""
        return self.views["header"][index:]


def _extend_of(extend: UnitList) -> tuple[Tile, int, bool]:
    return extend.tile, len(extend.units), bool((extend.units[:, 6] >= 0).all())


def _lengths(capacity: Capacity) -> list[tuple[str, int]]:
    """Sections of a plan with their words."""
    num_units = sum(count for _, _, count in capacity.lists)
    rows = ("row_token", "row_pos", "row_first", "row_part", "row_count", "tail_unit")
    return [
        ("header", HEADER),
        *((name, max(1, capacity.num_tokens)) for name in rows),
        ("units", max(1, num_units) * FIELDS),
        ("extend", max(1, capacity.extend[1] if capacity.extend else 0) * FIELDS),
        ("slots", max(1, capacity.num_slots)),
    ]


def _aligned(length: int) -> int:
    """Sections start on 16 bytes."""
    return -(-length // 4) * 4
