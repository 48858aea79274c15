"""Slots as arrays, and as runs of neighbours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int32]
Run = tuple[int, int]  # [start, stop)
NO_SLOTS: Slots = np.empty(0, np.int32)


def runs_of(slots: Slots) -> list[Run]:
    """Slots as maximal runs, in order. A slot named twice counts once."""
    num_slots = len(slots)
    if num_slots == 0:
        return []
    first, last = int(slots[0]), int(slots[-1])
    if last - first == num_slots - 1 and (num_slots < 3 or bool((slots[1:] > slots[:-1]).all())):
        return [(first, last + 1)]
    ordered = np.unique(slots)
    breaks = np.flatnonzero(ordered[1:] != ordered[:-1] + 1)
    starts = [int(ordered[0]), *ordered[breaks + 1].tolist()]
    stops = [*(ordered[breaks] + 1).tolist(), int(ordered[-1]) + 1]
    return list(zip(starts, stops, strict=True))


def slots_of(runs: list[Run]) -> Slots:
    """The slots of all runs, int32."""
    pieces = [np.arange(start, stop, dtype=np.int32) for start, stop in runs]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else NO_SLOTS
