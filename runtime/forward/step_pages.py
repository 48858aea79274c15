"""How much of its path each row of a step reads, from the variants along its sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixlang.attention import TopMass, TopPages
from radixlang.kernels.plan.page_limits import PageLimits, PageTallies
from radixlang.runtime.adapters.variants import VariantTable
from radixlang.runtime.scheduling.sequence import TokenSequence

Batch = Sequence[tuple[TokenSequence, int]]


def page_limits(variants: VariantTable, batch: Batch, counts: Sequence[int]) -> PageLimits | None:
    """The limits of a step's rows; None if every row reads all of its path.

    `counts` are the rows of each sequence, from its first token without keys and values on.
    """
    if not any(sequence.variants.starts for sequence, _ in batch):
        return None
    pages, mass = np.zeros(sum(counts), np.int32), np.zeros(sum(counts))
    at = 0
    for (sequence, _), count in zip(batch, counts, strict=True):
        first = sequence.num_computed
        for begin, end, variant in sequence.variants.pieces(first, first + count):
            rows = slice(at + begin - first, at + end - first)
            match variants.attention(variant):
                case TopPages(k):
                    pages[rows] = k
                case TopMass(epsilon):
                    mass[rows] = epsilon
        at += count
    limits = PageLimits(pages, mass)
    return limits if limits.limited.any() else None


def count_pages(tallies: PageTallies, batch: Batch, counts: Sequence[int]) -> None:
    """Add what rows have read to the counts of their requests."""
    at = 0
    for (sequence, _), count in zip(batch, counts, strict=True):
        rows = slice(at, at + count)
        pages = sequence.job.pages
        pages.num_pages += int(tallies.all_pages[rows].sum())
        pages.num_read += int(tallies.read[rows].sum())
        pages.omitted_mass = max(pages.omitted_mass, float(tallies.omitted[rows].max()))
        at += count
