"""How much of its path each generated token reads: all of it, or the pages that matter.

A page is 64 positions of one key head in one layer. Prompts are always read as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from radixlang.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Exact:
    """Every token reads all of its path."""


@dataclass(frozen=True, slots=True)
class TopPages:
    """A token reads the k pages that may hold the most mass, and those that always count.

    The path's first page, which holds the attention sink, and the two newest always count.

    Args:
        k: pages beside those, at least 1.

    Raises:
        ParameterError: k is no such number.
    """

    k: int

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ParameterError(
                f"TopPages needs an integer of at least 1 as its number of pages, got {self.k!r}"
            )


@dataclass(frozen=True, slots=True)
class TopMass:
    """A token reads pages, those that may hold the most mass first, until the rest provably holds
    less than epsilon of the mass of each query head.

    Args:
        epsilon: share of the softmax's mass, above 0 and below 1.

    Raises:
        ParameterError: epsilon is no such number.
    """

    epsilon: float

    def __post_init__(self) -> None:
        is_number = isinstance(self.epsilon, (int, float)) and not isinstance(self.epsilon, bool)
        if not (is_number and 0 < self.epsilon < 1):
            raise ParameterError(
                "TopMass needs a share of the mass above 0 and below 1, such as 0.01, got "
                f"{self.epsilon!r}; Exact() leaves nothing out"
            )


Attention: TypeAlias = Exact | TopPages | TopMass
EXACT = Exact()


def as_attention(value: object) -> Attention | None:
    """The argument `attention`, or the mapping that a file has of one; None stays None.

    Raises:
        ParameterError: it is none.
    """
    if value is None or isinstance(value, (Exact, TopPages, TopMass)):
        return value
    match value:
        case {"k": k, **rest} if not rest:
            return TopPages(k)
        case {"epsilon": epsilon, **rest} if not rest:
            return TopMass(epsilon)
        case {**rest} if not rest:
            return EXACT
    raise ParameterError(
        f"attention must be Exact(), TopPages(k) or TopMass(epsilon), got {value!r}"
    )
