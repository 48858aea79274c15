"""Rows that a trainer takes: one for each rollout, or the whole tree with every token once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rollout:
    """One path of the tree, from the root to the end of its last generation.

    Attributes:
        prompt_ids: tokens before the first sampled one.
        completion_ids: all tokens from there on.
        logprobs: of each token of the completion, as the model gave it when it was sampled (natural
            log, without temperature, biases and masks); 0.0 where `mask` is 0. None if a
            generation was run without `logprobs=True`.
        mask: 1 for a sampled token of the completion, 0 for one that was given or forced.
        branch: fork indices of the branch that ends here, from the root state.
        name: the variable of its last generation.
        weights_version: of the oldest weights that sampled a token of it.
        adapter: that of its last generation, "" without one.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    mask: tuple[int, ...]
    branch: tuple[int, ...] = ()
    name: str | None = None
    weights_version: int = 0
    adapter: str = ""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and completion."""
        return self.prompt_ids + self.completion_ids


@dataclass(frozen=True, slots=True)
class PackedTree:
    """All tokens of a tree in one sequence, each once, parents before children.

    Attributes:
        token_ids, position_ids: of each token; a position is its place in its own path.
        parents: index of the token before it in its path, -1 for a first token.
        logprobs, mask: as in a Rollout.
        ends: index of the last token of each rollout, in the order of `TokenTree.rollouts`.
    """

    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]
    parents: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    mask: tuple[int, ...]
    ends: tuple[int, ...]

    def attention_mask(self) -> NDArray[np.bool_]:
        """bool [n, n]: whether token i (a row) sees token j: itself and what is before it."""
        import numpy as np

        num = len(self.token_ids)
        sees = np.eye(num, dtype=np.bool_)
        for index, parent in enumerate(self.parents):
            if parent >= 0:
                sees[index] |= sees[parent]
        return sees
