"""Where drafts come from: the seam between a generation and a policy of drafts.

A step computes a draft together with the pending token, samples every position as it would have
alone, and accepts the tokens up to the first that differs from the draft. So a policy can cost
time, and can change no token. Leviathan et al. 2023 (speculative decoding).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

NO_DRAFT: NDArray[np.int32] = np.empty(0, np.int32)


class Drafter(Protocol):
    """Drafts for one generation."""

    @property
    def rate(self) -> float:
        """The chance that a token is accepted, if those before it are; below 1."""

    def propose(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """A draft of the tokens that follow tokens [n], [0] for none."""

    def learn(self, num_drafted: int, num_kept: int) -> None:
        """Count the accepted tokens of a draft that a step computed."""


class DraftPolicy(Protocol):
    """Makes the drafters of an engine, and owns what they share. Used by the engine's thread."""

    def drafter(self, namespace: Hashable) -> Drafter | None:
        """What drafts for a generation of a namespace; None goes token by token."""

    def clear(self) -> None:
        """Drop what was learned from texts, because the model's weights are others now."""
