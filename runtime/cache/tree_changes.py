"""What enters and leaves a radix tree, for a router that keeps summaries of several trees."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from radixlang.runtime.cache.node import RadixNode, token_ids, variants_of


@dataclass(frozen=True, slots=True)
class TreeChange:
    """A path of the plain model: `path` are token ids, int32, as bytes.

    `num_kept` is None if the tree holds the path now, and else how many of its first tokens are
    left.
    """

    namespace: str
    path: bytes
    num_kept: int | None = None


class TreeChanges:
    """Changes of a tree in their order. The tree's thread adds, any other takes.

    Paths of adapters are left out: their numbers mean nothing outside of their runtime.
    """

    def __init__(self) -> None:
        self._changes: deque[TreeChange] = deque()

    def added(self, path: Sequence[RadixNode]) -> None:
        """A node was added: the last of a path from below the root."""
        self._note(path, None)

    def removed(self, path: Sequence[RadixNode], num_tokens: int) -> None:
        """The last `num_tokens` of a path are about to go."""
        self._note(path, path[-1].end - num_tokens)

    def take(self) -> list[TreeChange]:
        """The changes since the last call."""
        changes = self._changes
        return [changes.popleft() for _ in range(len(changes))]

    def _note(self, path: Sequence[RadixNode], num_kept: int | None) -> None:
        keys = np.concatenate([node.key for node in path])
        if not variants_of(keys).any():
            tokens = token_ids(keys).tobytes()
            self._changes.append(TreeChange(path[-1].namespace.salt, tokens, num_kept))
