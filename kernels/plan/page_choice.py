"""The choice of the pages that one row reads for one key head, from bounds on their masses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from radixlang.kernels.plan.page_limits import NEWEST

Floats = NDArray[np.float64]


def choose_pages(
    mass: Floats, error: Floats, sinks: Floats | None, top_pages: int, top_mass: float
) -> tuple[NDArray[np.bool_], float]:
    """The pages to read [num_pages], and a bound on the share of the mass in the others.

    `mass` and `error` [group, num_pages] are of the query heads that share the key head: the
    natural log of a page's sum of weights lies within `error` of `mass`. `sinks` [group] are
    logits that take part of the mass. The first page and the newest are always read; then
    `top_pages` of those with the largest shares, or those with the most mass until the rest of
    every query head holds less than `top_mass` of its own.
    """
    top = (mass + error).max(axis=1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None])
    most, least = np.exp(mass + error - top), np.exp(mass - error - top)
    sunk = np.zeros(len(mass)) if sinks is None else np.exp(sinks - top[:, 0])
    chosen = np.zeros(mass.shape[1], np.bool_)
    chosen[0] = True
    chosen[-NEWEST:] = True
    free = np.flatnonzero(~chosen)
    if top_mass > 0:
        picked = [
            _until(free, own, low, low[chosen].sum() + sink, top_mass / (1 - top_mass))
            for own, low, sink in zip(most, least, sunk, strict=True)
        ]
        chosen[np.concatenate(picked)] = True
    else:
        shares = (most / most.sum(axis=1, keepdims=True)).sum(axis=0)
        chosen[free[np.argsort(-shares[free], kind="stable")[:top_pages]]] = True
    missed = most[:, ~chosen].sum(axis=1)
    held = least[:, chosen].sum(axis=1) + sunk
    return chosen, float((missed / (missed + held)).max())


def _until(
    free: NDArray[np.intp], most: Floats, least: Floats, held: float, share: float
) -> NDArray[np.intp]:
    """The first of `free`, in order of the most they may hold, up to where the rest is small."""
    order = free[np.argsort(-most[free], kind="stable")]
    rest = np.cumsum(most[order][::-1])[::-1]  # of those from each on
    known = held + np.concatenate(([0.0], np.cumsum(least[order])))[:-1]
    small = np.flatnonzero(rest <= share * known)
    return order[: small[0]] if len(small) else order
