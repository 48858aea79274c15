"""How much of its path each row of a step reads, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 64  # positions of a page
NEWEST = 2  # pages that always count: a row's own and the one before; and its path's first


@dataclass(frozen=True, slots=True)
class PageLimits:
    """What rows read where no window bounds them, by flat row; a row with two zeros reads all.

    Attributes:
        top_pages: [num_rows] int32, so many pages beside those that always count.
        top_mass: [num_rows] float64, pages until the rest holds less than this share of the mass.
    """

    top_pages: NDArray[np.int32]
    top_mass: NDArray[np.float64]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PageLimits) and all(
            np.array_equal(mine, theirs)
            for mine, theirs in (
                (self.top_pages, other.top_pages), (self.top_mass, other.top_mass)
            )
        )  # fmt: skip

    __hash__ = None  # type: ignore[assignment]  # it holds arrays

    @property
    def limited(self) -> NDArray[np.bool_]:
        """[num_rows] which rows may read less than all."""
        limited: NDArray[np.bool_] = (self.top_pages > 0) | (self.top_mass > 0)
        return limited


@dataclass(frozen=True, slots=True)
class PageTallies:
    """Pages of limited rows, summed over layers and key heads, by flat row.

    Attributes:
        read: [num_rows] int64 pages read.
        all_pages: [num_rows] int64 pages there were.
        omitted: [num_rows] float64, a bound on the largest share of the mass that was missed.
    """

    read: NDArray[np.int64]
    all_pages: NDArray[np.int64]
    omitted: NDArray[np.float64]
