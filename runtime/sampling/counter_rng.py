"""Random numbers by key: the same for a generation's seed and token, whatever else runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK = 2**64 - 1


def uniform(seeds: Sequence[int], counters: Sequence[int]) -> NDArray[np.float64]:
    """One number in [0, 1) for each (seed, counter), by two rounds of SplitMix64.

    (Steele, Lea and Flood 2014.) The seed is mixed first, so that neighbouring seeds and
    counters give unrelated numbers.
    """
    state = _mix(np.array([seed & _MASK for seed in seeds], np.uint64))
    with np.errstate(over="ignore"):
        state = state + (np.array(counters, np.uint64) + np.uint64(1)) * _GOLDEN
    return (_mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _MIX_1
        x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


class SeedSource:
    """Seeds for generations without one, made from the runtime's seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed & _MASK
        self._count = 0

    def next(self) -> int:
        """The next seed; it depends on the number of seeds before it."""
        self._count += 1
        return int(_mix(_mix(np.array([self._seed], np.uint64)) ^ np.uint64(self._count))[0])
