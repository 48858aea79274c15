"""Log-probabilities of whole rows of tokens, as a trainer has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from radixlang.errors import ParameterError
from radixlang.protocol import AdapterUse, Backend


class TokenRow(Protocol):
    """A prompt and what followed it."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Tokens before the completion."""
        ...

    @property
    def completion_ids(self) -> Sequence[int]:
        """Tokens to score."""
        ...


def score_rows(
    backend: Backend, rows: Sequence[TokenRow], namespace: str, adapter: AdapterUse | None
) -> list[tuple[float, ...]]:
    """Log-probabilities of each row's completion; rows with one prompt are scored as one tree.

    Raises:
        ParameterError: a row has no prompt.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        prompt = tuple(row.prompt_ids)
        if not prompt:
            raise ParameterError(
                f"row {index} has no prompt: there is nothing to predict its first token from"
            )
        groups.setdefault(prompt, []).append(index)
    branches, replies = [], []
    try:
        for prompt, members in groups.items():
            branch = backend.new_branch(namespace=namespace)
            branches.append(branch)
            if adapter is not None:
                branch.use_adapter(adapter)
            branch.extend(prompt)
            replies.append(branch.score([tuple(rows[index].completion_ids) for index in members]))
        found: list[tuple[float, ...]] = [()] * len(rows)
        for members, reply in zip(groups.values(), replies, strict=True):
            for index, score in zip(members, reply.result(), strict=True):
                found[index] = score.logprobs
        return found
    finally:
        for branch in branches:
            branch.release()
