"""Drafts: the tokens that probably come next, looked up in what the branch has read and written.

Text repeats itself: names, quotations, lists, code. Where its last tokens have come before, what
followed them then is drafted now; else what followed them in another branch's text. A step
computes the draft together with the pending token, samples every position as it would have alone,
and accepts the tokens up to the first that differs from the draft. So the text is
what it would have been, in fewer steps.

The length of drafts is decided for a step as a whole, by the tokens that it probably yields for its
time.

Leviathan et al. 2023 (speculative decoding), Yang et al. 2023 (LLMA: copying from a reference),
Liu et al. 2024 (SmartSpec: as much speculation as raises what a batch gets done).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from radixlang.runtime.speculative.ngram_cache import NgramText

NO_DRAFT: NDArray[np.int32] = np.empty(0, np.int32)
MIN_MATCH, MAX_MATCH = 2, 4  # fewest and most tokens that are matched
WINDOW = 8192  # tokens that are searched
# Measured on two cores with a model of 135M. The first two are shares of a lone generation's step,
# the others of the step that they are in.
GENERATION_COST = 0.07  # one more generation in a step
ROW_COST = 0.02  # one more row of a generation
DRAFTS_COST = 0.12  # any drafts at all
LENGTH_COST = 0.02  # a token more of the longest draft, to which attention pads all others
_PRIOR_KEPT, _PRIOR_TRIED = 1.0, 2.0  # as if so many of so many drafts had been accepted
_PAST = 0.9  # weight of earlier drafts at each new one


class Drafter:
    """Drafts for one generation, and how often they were accepted lately."""

    __slots__ = ("_guess", "_kept", "_most", "_tried", "_writing")

    def __init__(self, most: int, writing: NgramText) -> None:
        self._most = most
        self._writing = writing
        self._kept, self._tried = _PRIOR_KEPT, _PRIOR_TRIED
        self._guess: tuple[int, int] | None = None  # position and token, until it is compared

    @property
    def rate(self) -> float:
        """The chance that a token is accepted, if those before it are."""
        return min(self._kept / self._tried, 0.99)

    def propose(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """A draft of the tokens that follow tokens [n].

        If it is not taken up, its first token is compared with what comes all the same: so
        a generation without drafts notices when they would be accepted again.
        """
        guess, self._guess = self._guess, None
        if guess is not None and guess[0] < len(tokens):
            self.learn(1, int(tokens[guess[0]] == guess[1]))
        self._writing.extend(tokens)
        draft = lookup(tokens, self._most)
        if not len(draft):
            draft = self._writing.guess(tokens, self._most)
        if len(draft):
            self._guess = (len(tokens), int(draft[0]))
        return draft

    def learn(self, num_drafted: int, num_kept: int) -> None:
        """Count the accepted tokens of a draft; those after the first rejected one do not count."""
        self._guess = None
        self._kept = _PAST * self._kept + num_kept
        self._tried = _PAST * self._tried + num_kept + (num_kept < num_drafted)


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


def lookup(tokens: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """`count` tokens [count] that followed an earlier occurrence of the last ones, or none [0].

    The longest match counts, and among equals the latest. Text that repeats without a break is
    continued periodically.
    """
    text = tokens[-WINDOW:]
    ends = np.flatnonzero(text[:-1] == text[-1])
    for length in range(2, MAX_MATCH + 1):
        longer = ends[ends >= length - 1]
        longer = longer[text[longer - length + 1] == text[-length % len(text)]]
        if not len(longer):
            if length <= MIN_MATCH:
                return NO_DRAFT
            break
        ends = longer
    return np.resize(text[int(ends[-1]) + 1 :], count)
