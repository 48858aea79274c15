"""How many tokens to draft: decided for a step as a whole, by what it yields for its time.

Liu et al. 2024 (SmartSpec: as much speculation as raises what a batch gets done).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Measured on two cores with a model of 135M. The first two are shares of a lone generation's step,
# the others of the step that they are in.
GENERATION_COST = 0.07  # one more generation in a step
ROW_COST = 0.02  # one more row of a generation
DRAFTS_COST = 0.12  # any drafts at all
LENGTH_COST = 0.02  # a token more of the longest draft, to which attention pads all others


def choose_lengths(rates: Sequence[float], most: int, *, is_ragged: bool = False) -> list[int]:
    """How many tokens to draft, up to `most`, for each generation of a step.

    `rates` are the chances that its tokens are accepted, 0 where there is no draft. A step that is
    ragged computes several tokens for some of them anyway. What the step gets done, for the time
    that it takes, is to be as much as possible. A token is worth less where others are in the
    step: if they are not faster too, then it only saves the step's time for one of them later.
    """
    num = len(rates)
    row_cost = ROW_COST / (1 + GENERATION_COST * (num - 1))
    worth = (1 + 1 / num) / (2 * num)  # of a token, in steps
    length = np.arange(1, most + 1)
    kept = np.asarray(rates)[:, None] ** length  # the chance that a token is right
    pays = kept * worth > row_cost
    done = 1 + worth * np.cumsum((kept * pays).sum(0))
    time = (
        1
        + (0 if is_ragged else DRAFTS_COST)
        + LENGTH_COST * length
        + row_cost * np.cumsum(pays.sum(0))
    )
    best = int((done / time).argmax())
    if done[best] <= time[best]:
        return [0] * num
    lengths: list[int] = pays[:, : best + 1].sum(1).tolist()
    return lengths
