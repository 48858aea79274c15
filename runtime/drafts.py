"""Drafts: the tokens that probably come next, looked up in what the branch has read and written.

Text repeats itself: names, quotations, lists, code. Where its last tokens have come before, what
followed them then is a guess at what follows now. A step computes the guess together with the
pending token, samples every position as it would have alone, and keeps the tokens up to the first
that differs from the guess. So the text is what it would have been, in fewer steps.

Leviathan et al. 2023 (speculative decoding), Yang et al. 2023 (LLMA: copying from a reference).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

NO_DRAFT: NDArray[np.int32] = np.empty(0, np.int32)
MIN_MATCH, MAX_MATCH = 2, 4  # tokens that must have come before, and those worth comparing
WINDOW = 8192  # tokens that are searched
ROW_COST = 0.04  # of a step's time, that one more row adds (measured on two cores: 0.02 to 0.04)
DRAFT_COST = 0.3  # of a token's time, that a draft costs before its rows
_PRIOR_KEPT, _PRIOR_TRIED = 1.5, 2.5  # as if so many of so many guesses had been right
_PAST = 0.9  # weight of earlier guesses at each new one


class Drafter:
    """Drafts for one generation: at most `most` tokens, fewer where guesses were wrong lately."""

    __slots__ = ("_guess", "_kept", "_most", "_tried")

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept, self._tried = _PRIOR_KEPT, _PRIOR_TRIED
        self._guess: tuple[int, int] | None = None  # position and token, while nothing is drafted

    def propose(self, tokens: NDArray[np.int32], num_running: int) -> NDArray[np.int32]:
        """A draft of what follows tokens [n], for a step beside `num_running` generations.

        While none pays, the next token is guessed all the same, to see when they would; but not
        beside so many generations that none can.
        """
        if ROW_COST * num_running >= 1.0:
            self._guess = None
            return NO_DRAFT
        self._compare(tokens)
        count = self._worthwhile(num_running)
        draft = lookup(tokens, max(count, 1))
        if count or not len(draft):
            return draft
        self._guess = (len(tokens), int(draft[0]))
        return NO_DRAFT

    def learn(self, num_drafted: int, num_kept: int) -> None:
        """Take in how much of a draft was right; tokens after the first wrong one say nothing."""
        self._kept = _PAST * self._kept + num_kept
        self._tried = _PAST * self._tried + num_kept + (num_kept < num_drafted)

    def _worthwhile(self, num_running: int) -> int:
        """How many tokens to draft.

        A row is worth its cost as long as the chance that its token is kept, for one generation,
        exceeds what it adds to the time of all; the draft, as long as the tokens that it will
        probably give exceed what it costs.
        """
        rate = min(self._kept / self._tried, 0.99)
        least = ROW_COST * num_running
        if rate <= least:
            return 0
        count = min(self._most, int(math.log(least) / math.log(rate)))
        gain = rate * (1 - rate**count) / (1 - rate)
        return count if gain > DRAFT_COST + least * count else 0

    def _compare(self, tokens: NDArray[np.int32]) -> None:
        guess, self._guess = self._guess, None
        if guess is not None and guess[0] < len(tokens):
            self.learn(1, int(tokens[guess[0]] == guess[1]))


def lookup(tokens: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """`count` tokens [count] that followed the last ones when they came before, or none [0].

    The longest match counts, and among equals the latest. What repeats without a break goes on
    round and round.
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
