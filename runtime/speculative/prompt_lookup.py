"""Drafts: the tokens that probably come next, looked up in what the branch has read and written.

Text repeats itself: names, quotations, lists, code. Where its last tokens have come before, what
followed them then is drafted now; else what followed them in another branch's text. A step
computes the draft together with the pending token, samples every position as it would have alone,
and accepts the tokens up to the first that differs from the draft. So the text is
what it would have been, in fewer steps.

Yang et al. 2023 (LLMA: copying from a reference).
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from radixlang.runtime.speculative.drafts import NO_DRAFT
from radixlang.runtime.speculative.ngram_cache import NgramCache, NgramText

MIN_MATCH, MAX_MATCH = 2, 4  # fewest and most tokens that are matched
WINDOW = 8192  # tokens that are searched
_PRIOR_KEPT, _PRIOR_TRIED = 1.0, 2.0  # as if so many of so many drafts had been accepted
_PAST = 0.9  # weight of earlier drafts at each new one


class PromptLookup:
    """The policy: drafts of at most `most` tokens, 0 for none. Namespaces share no text."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._ngrams = NgramCache()

    def drafter(self, namespace: Hashable) -> LookupDrafter | None:
        """See `DraftPolicy`."""
        return LookupDrafter(self.most, NgramText(self._ngrams, namespace)) if self.most else None

    def clear(self) -> None:
        """See `DraftPolicy`."""
        self._ngrams.clear()


class LookupDrafter:
    """Drafts for one generation, and how often they were accepted lately."""

    __slots__ = ("_guess", "_kept", "_most", "_text", "_tried")

    def __init__(self, most: int, text: NgramText) -> None:
        self._most = most
        self._text = text
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
        self._text.extend(tokens)
        draft = lookup(tokens, self._most)
        if not len(draft):
            draft = self._text.guess(tokens, self._most)
        if len(draft):
            self._guess = (len(tokens), int(draft[0]))
        return draft

    def learn(self, num_drafted: int, num_kept: int) -> None:
        """Count the accepted tokens of a draft; those after the first rejected one do not count."""
        self._guess = None
        self._kept = _PAST * self._kept + num_kept
        self._tried = _PAST * self._tried + num_kept + (num_kept < num_drafted)


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
