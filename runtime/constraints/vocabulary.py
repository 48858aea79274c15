"""A model's tokens for the mask engine, and the only access to its library.

Rows of a mask are as wide as the model's logits. Ids without bytes (padding, holes) and special
tokens are never text, so no mask allows them, except end tokens where a text may end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import llguidance
import numpy as np

# Bounds on what one constraint may cost. Fuel is the engine's own unit: about 50,000 a
# millisecond while a lexer is built, 14,000 while a mask is made.
LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=5_000_000,
    step_lexer_fuel=2_000_000,
    step_max_items=200_000,
    max_items_in_row=20_000,
    max_lexer_states=100_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
# Tokens that match this pattern are handled together if a grammar allows all of it, as in a JSON
# string. A slice takes 3 MB for 50,000 tokens; this one makes masks as fast as all of the engine's
# own four.
SLICES = [r'[^"\\\x00-\x1F\x7F]{1,30}']


class TokenSource(Protocol):
    """The tokenizer's interface here: `radixlang.runtime.text.tokenizer.Tokenizer` has it."""

    @property
    def special_token_ids(self) -> Iterable[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode_run(self, pieces: Sequence[str], *, at_start: bool) -> list[int]: ...


class Vocabulary:
    """The tokens of one model for the engine.

    Args:
        token_bytes: bytes of every id; empty for an unused id.
        special_token_ids: ids that are never text.
        eos_token_ids: ids that end a text.
        encode: tokens of a text, with special tokens' names as plain text.
        vocab_size: width of the logits; ids beyond the list are padding.

    `byte_ids` has the token of each single byte that has one.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        special_token_ids: Iterable[int],
        eos_token_ids: Iterable[int],
        encode: Callable[[str], list[int]],
        vocab_size: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size or len(token_bytes)
        self.token_bytes = [*token_bytes, *[b""] * (self.vocab_size - len(token_bytes))]
        del self.token_bytes[self.vocab_size :]
        self.eos_token_ids = tuple(i for i in dict.fromkeys(eos_token_ids) if i < self.vocab_size)
        self.encode = encode
        self.num_words = -(-self.vocab_size // 32)
        special = {i for i in special_token_ids if i < self.vocab_size} | set(self.eos_token_ids)
        self.engine = self._build(special)
        self.eos_row = self._row(self.eos_token_ids)
        text = [i for i, piece in enumerate(self.token_bytes) if piece and i not in special]
        self.text_row = self._row(text)
        self.byte_ids = {piece[0]: i for i in text if len(piece := self.token_bytes[i]) == 1}

    def _build(self, special: set[int]) -> llguidance.LLTokenizer:
        # For a model without an end token, one more id is it inside the engine.
        pieces = self.token_bytes if self.eos_token_ids else [*self.token_bytes, b""]
        eos = list(self.eos_token_ids) or [self.vocab_size]
        blanks = {i for i, piece in enumerate(pieces) if not piece}
        wrapped = _Wrapped(pieces, sorted(special | blanks), eos[0], self.encode)
        tokens = llguidance.TokenizerWrapper(wrapped)
        return llguidance.LLTokenizer(tokens, eos_token=eos, slices=SLICES)

    def _row(self, token_ids: Iterable[int]) -> np.ndarray:
        bits = np.zeros(self.num_words * 32, dtype=np.uint8)
        bits[list(token_ids)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    @classmethod
    def of(
        cls, tokenizer: TokenSource, vocab_size: int, eos_token_ids: Iterable[int]
    ) -> Vocabulary:
        """The vocabulary of a model whose logits are `vocab_size` wide."""
        return cls(
            [tokenizer.token_bytes(i) for i in range(vocab_size)],
            tokenizer.special_token_ids,
            eos_token_ids,
            lambda text: tokenizer.encode_run([text], at_start=False),
            vocab_size,
        )

    @classmethod
    def of_bytes(cls) -> Vocabulary:
        """One token for each byte, to match finished text."""
        pieces = [bytes([i]) for i in range(256)]
        return cls(pieces, (), (), lambda text: list(text.encode()))

    def matcher(self, grammar: str) -> llguidance.LLMatcher:
        """A new engine matcher; it never raises, errors are in its state."""
        return llguidance.LLMatcher(self.engine, grammar, log_level=0, limits=LIMITS)


class _Wrapped:
    """The tokenizer's interface that the engine expects."""

    def __init__(
        self, tokens: list[bytes], special: list[int], eos: int, encode: Callable[[str], list[int]]
    ) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, eos
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else bytes(text).decode("utf-8"))
