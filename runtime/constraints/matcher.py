"""The position of one text in a constraint: masks, forced tokens, forks, rollback.

The engine underneath never raises, so its state is read after every call: an error or a dead end
becomes an exception here, never an empty text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TypeVar

import llguidance
import numpy as np

from radixlang.constraints.specs import Constraint
from radixlang.errors import ConstraintError, InvalidConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints.engine_errors import brief, raise_on_error, reached_a_bound
from radixlang.runtime.constraints.next_text import next_in_words
from radixlang.runtime.constraints.vocabulary import Vocabulary

MAX_TOKEN_S = 0.01  # of computing, on average over ten and more tokens
T = TypeVar("T")


class EngineStart:
    """The engine at the beginning of a constraint's texts. Safe to share between threads.

    Args:
        spec: the constraint.
        vocabulary: what its masks are for.
        grammar: the constraint as the engine's text.
        forces: whether the engine is asked for forced text.
        engine: an engine of this grammar at the beginning.
    """

    def __init__(
        self, spec: Constraint, vocabulary: Vocabulary, grammar: str, forces: bool,
        engine: llguidance.LLMatcher,
    ) -> None:  # fmt: skip
        self.spec, self.vocabulary = spec, vocabulary
        self.grammar, self.forces = grammar, forces
        self._engine: llguidance.LLMatcher | None = engine
        self._number = 0
        self._lock = threading.Lock()

    def matcher(self) -> Matcher:
        """A matcher at the beginning of a text."""
        with self._lock:  # the engine forbids concurrent use, also to copy
            self._engine = self._engine or self.fresh_engine()
            return Matcher(self, self._engine.deep_copy(), start=self._number)

    def fresh_engine(self) -> llguidance.LLMatcher:
        """An engine that shares nothing with those of other texts."""
        return self.vocabulary.matcher(self.grammar)

    def retire(self, number: int) -> None:
        """Use a new engine for further texts after one reached a bound: copies of an engine share
        the states of its lexer, and the bound on their number."""
        with self._lock:
            if number == self._number:
                self._engine, self._number = None, number + 1


class Matcher:
    """The position of one branch in a constraint. Used from one thread at a time.

    Attributes:
        tokens: token ids consumed so far.
    """

    __slots__ = ("_engine", "_row", "_start", "source", "tokens")

    def __init__(
        self, source: EngineStart, engine: llguidance.LLMatcher,
        tokens: Sequence[int] = (), start: int | None = None,
    ) -> None:  # fmt: skip
        self.source, self._engine = source, engine
        self.tokens = list(tokens)
        self._row: np.ndarray | None = None
        self._start = start  # the number of the start it shares with other texts, None alone

    def fork(self) -> Matcher:
        """An independent matcher at the same place."""
        copy = Matcher(self.source, self._engine.deep_copy(), self.tokens, self._start)
        copy._row = self._row
        return copy

    def fill_bitmask(self, row: np.ndarray) -> None:
        """Write the allowed tokens: bit i of the int32 row is token i.

        End tokens are set only if the text may end, padding and special tokens never.

        Raises:
            ConstraintError: no token is allowed and the text may not end either.
        """
        row[: self.source.vocabulary.num_words] = self.allowed_row()
        row[self.source.vocabulary.num_words :] = 0

    def allowed_row(self) -> np.ndarray:
        """The mask as an int32 array of ceil(vocab_size / 32) words; do not write to it."""
        if self._row is None:
            row = self._ask(lambda engine: engine.compute_bitmask())
            self._row = self._checked(np.frombuffer(row, dtype=np.int32))
        return self._row

    def take_row(self, row: np.ndarray) -> None:
        """Take a mask that the engine has computed; if it reached a bound, compute it here.

        Raises:
            ConstraintError: no token is allowed and the text may not end either.
        """
        if self._engine.is_error():
            self.allowed_row()
        else:
            self._row = self._checked(row)

    def _ask(self, question: Callable[[llguidance.LLMatcher], T]) -> T:
        """The engine's answer. If it reached a bound that it shares with other texts, it is asked
        once more with a new engine.

        Raises:
            UnsupportedConstraintError: this text alone reaches a bound on time or memory.
        """
        answer = question(self._engine)
        if self._start is not None and reached_a_bound(self._engine):
            self.source.retire(self._start)
            self._engine, self._start = self.source.fresh_engine(), None
            self._engine.try_consume_tokens(self.tokens)
            answer = question(self._engine)
        if reached_a_bound(self._engine):
            raise_on_error(self._engine, self.source.spec)
        return answer

    def forced_tokens(self) -> list[int]:
        """Forced tokens, as the tokenizer would write the text as a whole."""
        if self._engine.is_stopped() or not self.source.forces:
            return []
        forced: list[int] = self._ask(lambda engine: engine.compute_ff_tokens())
        raise_on_error(self._engine, self.source.spec)
        return self._whole_characters(forced) if forced else forced

    def consume(self, token_ids: Sequence[int]) -> None:
        """Advance by tokens; after an error the matcher is where it was.

        Raises:
            ConstraintError: a token is not allowed here.
        """
        ids = list(token_ids)
        num_taken, taken_s = self._read(ids, _consume)
        self.tokens.extend(ids[:num_taken])
        self._row = None
        self._check_time(taken_s, len(ids))
        if self._engine.is_error():
            raise self._dead_end()
        if num_taken < len(ids):
            message = self._refusal(ids[num_taken], num_taken)
            self.rollback(num_taken)
            raise ConstraintError(message)

    def _read(self, ids: list[int], read: Callable[..., int]) -> tuple[int, float]:
        """The number of tokens that were read, and the seconds that all of them took."""
        begun_s, start = time.thread_time(), self._start
        answer = self._ask(lambda engine: read(engine, ids))
        taken_s = time.thread_time() - begun_s
        if start != self._start:  # the text before them was read again
            taken_s *= len(ids) / (len(self.tokens) + len(ids))
        return answer, taken_s

    def _check_time(self, taken_s: float, num_tokens: int) -> None:
        """Bound the time: a very ambiguous grammar takes longer for each token than before."""
        if taken_s > MAX_TOKEN_S * (10 + num_tokens):
            raise UnsupportedConstraintError(
                f"{brief(self.source.spec)} is too complex: to read {num_tokens} tokens after "
                f"{len(self.tokens) - num_tokens} took {taken_s:.2f} s; make it less ambiguous"
            )

    def consume_rest(self, token_id: int, num_before: int) -> None:
        """Advance by a token whose first `num_before` bytes precede the constrained text."""
        vocabulary = self.source.vocabulary
        rest = vocabulary.token_bytes[token_id][num_before:]
        self.consume([vocabulary.byte_ids[byte] for byte in rest])

    def num_valid(self, token_ids: Sequence[int]) -> int:
        """How many of the tokens could be consumed.

        Raises:
            UnsupportedConstraintError: the check exceeds the bound on time or memory.
        """
        ids = list(token_ids)
        found, taken_s = self._read(ids, _validate)
        self._check_time(taken_s, len(ids))
        return found

    def num_valid_bytes(self, data: bytes) -> int:
        """How many of the bytes could be consumed, each as its single-byte token."""
        ids = self.source.vocabulary.byte_ids
        return self.num_valid(list(takewhile(lambda i: i >= 0, (ids.get(b, -1) for b in data))))

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens, the end token included.

        Raises:
            ConstraintError: fewer tokens were consumed.
        """
        if not 0 <= num_tokens <= len(self.tokens):
            raise ConstraintError(f"cannot take back {num_tokens} of {len(self.tokens)} tokens")
        if num_tokens:
            self._engine.rollback(num_tokens)
            del self.tokens[-num_tokens:]
            self._row = None
            raise_on_error(self._engine, self.source.spec)

    @property
    def is_complete(self) -> bool:
        """Whether the text so far satisfies the constraint, so that it may end here."""
        return bool(self._engine.is_accepting())

    @property
    def has_stopped(self) -> bool:
        """Whether it is known to be finished without computing a mask, as `is_finished` does."""
        return bool(self._engine.is_stopped())

    @property
    def is_finished(self) -> bool:
        """Whether the text is complete and nothing may follow it."""
        if self._engine.is_stopped():
            return True
        if not self.is_complete:
            return False
        return not (self.allowed_row() & self.source.vocabulary.text_row).any()

    def text_bytes(self) -> bytes:
        """The bytes of the text so far."""
        pieces, ends = self.source.vocabulary.token_bytes, self.source.vocabulary.eos_token_ids
        return b"".join(pieces[token] for token in self.tokens if token not in ends)

    def _whole_characters(self, forced: list[int]) -> list[int]:
        """Forced tokens up to the last that does not end inside a character."""
        pieces = self.source.vocabulary.token_bytes
        pending = self.text_bytes_tail()
        for num in range(len(forced), 0, -1):
            if _ends_whole(pending + b"".join(pieces[token] for token in forced[:num])):
                return forced[:num]
        return []

    def describe_next(self) -> str:
        """What may come next, in words."""
        try:
            row = self.allowed_row()
        except ConstraintError as error:
            return str(error)
        pieces = self.source.vocabulary.token_bytes
        forced = b"".join(pieces[token] for token in self.forced_tokens())
        return next_in_words(row, forced, self.is_complete, pieces)

    def text_bytes_tail(self) -> bytes:
        """The last bytes of the text so far: enough to hold any unfinished character."""
        pieces = self.source.vocabulary.token_bytes
        return b"".join(pieces[token] for token in self.tokens[-4:])[-4:]

    def _checked(self, bits: np.ndarray) -> np.ndarray:
        """The engine's mask in the logits' width, after a check of its state."""
        if self._engine.is_error():
            raise self._dead_end()
        vocabulary = self.source.vocabulary
        row: np.ndarray = bits[: vocabulary.num_words] & (vocabulary.text_row | vocabulary.eos_row)
        if not row.any() and not self.is_complete:
            raise self._dead_end()
        return row

    def _dead_end(self) -> ConstraintError:
        text = self.text_bytes().decode("utf-8", "replace")
        if self._engine.is_error() and not self._engine.get_error().startswith("NoExtension"):
            raise_on_error(self._engine, self.source.spec)
        if not self.tokens:
            return InvalidConstraintError(f"{brief(self.source.spec)} can match no text at all")
        return ConstraintError(
            f"{brief(self.source.spec)} has no way on after {text[-60:]!r}: "
            "what it asks for here contradicts itself"
        )

    def _refusal(self, token: int, index: int) -> str:
        piece = self.source.vocabulary.token_bytes[token : token + 1]
        shown = piece[0].decode("utf-8", "replace") if piece else ""
        before = self.text_bytes().decode("utf-8", "replace")[-60:]
        return (
            f"token {token} ({shown!r}), number {index} of those given, is not allowed after "
            f"{before!r}; expected {self.describe_next()}"
        )


def _consume(engine: llguidance.LLMatcher, ids: list[int]) -> int:
    """The number of consumed tokens. A bound that was reached shows only when a mask is asked."""
    num_taken = int(engine.try_consume_tokens(ids))
    if num_taken < len(ids) and not engine.is_stopped():
        engine.compute_bitmask()
    return num_taken


def _validate(engine: llguidance.LLMatcher, ids: list[int]) -> int:
    return int(engine.validate_tokens(ids))


def _ends_whole(data: bytes) -> bool:
    """Whether bytes end at the end of a character (UTF-8; they may begin inside one)."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return back == 1
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back == length
    return True
