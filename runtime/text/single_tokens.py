"""Tokens that a user names by their id, or by a text that is one token."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from radixlang.errors import ParameterError
from radixlang.runtime.sampling.row import Bias
from radixlang.runtime.text.tokenizer import Tokenizer


def single_token(token: str | int, tokenizer: Tokenizer, vocab_size: int) -> int:
    """The id of a token; a text stands for the token that it is inside a longer text.

    Raises:
        ParameterError: the text is not one token, or the id is not one that may be generated.
    """
    if isinstance(token, int):
        if not 0 <= token < vocab_size:
            raise ParameterError(f"token id {token} is not in this model's vocabulary of "
                                 f"{vocab_size}")  # fmt: skip
        return token
    ids = tokenizer.encode_run([token], at_start=False)
    if len(ids) != 1:
        parts = ", ".join(repr(tokenizer.decode([i])) for i in ids) or "none"
        raise ParameterError(
            f"{token!r} is not one token of this model, but {len(ids)}: {parts}. Name one of "
            "those, or a token id; a word inside a text mostly begins with its space, as in ' yes'"
        )
    return ids[0]


def bias_of(
    pairs: Iterable[tuple[str | int, float]], tokenizer: Tokenizer, vocab_size: int
) -> Bias | None:
    """The argument `logit_bias` by ids; None without one."""
    found: dict[int, float] = {}
    for token, value in pairs:
        token_id = single_token(token, tokenizer, vocab_size)
        found[token_id] = found.get(token_id, 0.0) + value
    if not found:
        return None
    return np.array([*found], np.int64), np.array([*found.values()], np.float32)
