"""Constrained generation: a constraint is compiled once, and each branch has its own matcher.

A matcher forks with its branch, computes the mask of allowed tokens and the forced tokens, and
rolls back. The engine underneath never raises, so its state is read after every call: an error or
a dead end becomes an exception here, never an empty text.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import takewhile
from typing import TypeVar
from weakref import WeakKeyDictionary

import llguidance
import numpy as np

from radixlang.constraints.specs import Constraint, Finish, Match, as_constraint
from radixlang.errors import (
    ConstraintError,
    InvalidConstraintError,
    UnsupportedConstraintError,
)
from radixlang.runtime.constraints.completion import close_text
from radixlang.runtime.constraints.explain import capture_parts, describe_next, explain_text
from radixlang.runtime.constraints.grammar.lowering import ParseTree
from radixlang.runtime.constraints.lowering import Grammars, Lowered, has_grammar, lower
from radixlang.runtime.constraints.time_limit import within
from radixlang.runtime.constraints.vocabulary import TokenSource, Vocabulary

MAX_CACHED_CONSTRAINTS = 256
MAX_COMPILE_S = 3.0  # of the MaskBench sample one takes 0.35 s; 2,000 keys took 1 in a busy hour
MAX_GRAMMAR_S = 5.0  # lark takes most of a second for a grammar as large as Python's
MAX_TOKEN_S = 0.01  # of computing, on average over ten and more tokens
_SIGNS_OF_BOUNDS = ("too complex", "too large", "limit", "fuel", "too many", "u16::MAX")
T = TypeVar("T")


class CompiledConstraint:
    """A constraint compiled for one vocabulary. Safe to share between threads.

    Attributes:
        spec: what it was compiled from.
        ignored: JSON pointers of schema keywords that strict=False left out.
        warnings: conditions that the masks do not enforce; `check` does in the finished text.
        finish: what happens at max_tokens: "error" or "close".
        forces: whether the engine is asked for forced text.
    """

    def __init__(self, spec: Constraint, vocabulary: Vocabulary) -> None:
        self.spec, self.vocabulary = spec, vocabulary
        grammars = Grammars(vocabulary.matcher)
        self._lowered: Lowered = lower(spec, grammars)
        self.grammar = grammars.text(self._lowered.body)
        self.ignored, self.warnings = self._lowered.ignored, self._lowered.warnings
        self.finish: Finish = spec.finish
        self.forces = self._lowered.forces
        self._start: llguidance.LLMatcher | None = grammars.matcher(self.grammar)
        self._num_starts = 0
        self._lock = threading.Lock()
        _raise_on_error(self._start, spec)
        self.matcher().allowed_row()  # a dead end at the beginning is an error now

    def matcher(self) -> Matcher:
        """A matcher at the beginning of a text."""
        with self._lock:  # the engine forbids concurrent use, also to copy
            self._start = self._start or self.fresh_engine()
            return Matcher(self, self._start.deep_copy(), start=self._num_starts)

    def fresh_engine(self) -> llguidance.LLMatcher:
        """An engine that shares nothing with those of other texts."""
        return self.vocabulary.matcher(self.grammar)

    def retire(self, start: int) -> None:
        """Use a new engine for further texts after one reached a bound: copies of an engine share
        the states of its lexer, and the bound on their number."""
        with self._lock:
            if start == self._num_starts:
                self._start, self._num_starts = None, start + 1

    @property
    def has_check(self) -> bool:
        """Whether `check` does anything."""
        return self._lowered.check is not None

    def check(self, text: str) -> None:
        """Check a finished text for conditions that the masks do not enforce.

        Raises:
            ConstraintError: the text does not satisfy the constraint.
        """
        if self._lowered.check is not None:
            self._lowered.check(text)

    def match(self, text: str) -> Match:
        """The match of a finished text with the constraint."""
        return match_text(self.spec, text)

    def tree(self, text: str) -> ParseTree | None:
        """lark's parse tree of a finished text; None if the constraint is not a grammar."""
        return self._lowered.tree(text) if self._lowered.tree is not None else None

    def captures(self, text: str) -> dict[str, str]:
        """Variables that a finished text binds."""
        if self._lowered.captures is not None:
            return self._lowered.captures(text)
        return capture_parts(self.spec, text, byte_constraint)

    def close(self, text: str | bytes) -> str:
        """A short text that completes a truncated one.

        Raises:
            IncompleteError: none was found within the bound on the search.
        """
        return close_text(byte_constraint(self.spec).matcher(), text)


class Matcher:
    """The position of one branch in a constraint. Used from one thread at a time.

    Attributes:
        tokens: token ids consumed so far.
    """

    __slots__ = ("_engine", "_row", "_start", "compiled", "tokens")

    def __init__(
        self, compiled: CompiledConstraint, engine: llguidance.LLMatcher,
        tokens: Sequence[int] = (), start: int | None = None,
    ) -> None:  # fmt: skip
        self.compiled, self._engine = compiled, engine
        self.tokens = list(tokens)
        self._row: np.ndarray | None = None
        self._start = start  # the number of the start it shares with other texts, None alone

    def fork(self) -> Matcher:
        """An independent matcher at the same place."""
        copy = Matcher(self.compiled, self._engine.deep_copy(), self.tokens, self._start)
        copy._row = self._row
        return copy

    def fill_bitmask(self, row: np.ndarray) -> None:
        """Write the allowed tokens: bit i of the int32 row is token i.

        End tokens are set only if the text may end, padding and special tokens never.

        Raises:
            ConstraintError: no token is allowed and the text may not end either.
        """
        row[: self.compiled.vocabulary.num_words] = self.allowed_row()
        row[self.compiled.vocabulary.num_words :] = 0

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
        if self._start is not None and _reached_a_bound(self._engine):
            self.compiled.retire(self._start)
            self._engine, self._start = self.compiled.fresh_engine(), None
            self._engine.try_consume_tokens(self.tokens)
            answer = question(self._engine)
        if _reached_a_bound(self._engine):
            _raise_on_error(self._engine, self.compiled.spec)
        return answer

    def forced_tokens(self) -> list[int]:
        """Forced tokens, as the tokenizer would write the text as a whole."""
        if self._engine.is_stopped() or not self.compiled.forces:
            return []
        forced: list[int] = self._ask(lambda engine: engine.compute_ff_tokens())
        _raise_on_error(self._engine, self.compiled.spec)
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
                f"{_brief(self.compiled.spec)} is too complex: to read {num_tokens} tokens after "
                f"{len(self.tokens) - num_tokens} took {taken_s:.2f} s; make it less ambiguous"
            )

    def consume_rest(self, token_id: int, num_before: int) -> None:
        """Advance by a token whose first `num_before` bytes precede the constrained text."""
        vocabulary = self.compiled.vocabulary
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
        ids = self.compiled.vocabulary.byte_ids
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
            _raise_on_error(self._engine, self.compiled.spec)

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
        return not (self.allowed_row() & self.compiled.vocabulary.text_row).any()

    def text_bytes(self) -> bytes:
        """The bytes of the text so far."""
        pieces, ends = self.compiled.vocabulary.token_bytes, self.compiled.vocabulary.eos_token_ids
        return b"".join(pieces[token] for token in self.tokens if token not in ends)

    def close(self) -> str:
        """A short text that completes this one (`finish="close"`).

        Raises:
            IncompleteError: none was found within the bound on the search.
        """
        return self.compiled.close(self.text_bytes())

    def _whole_characters(self, forced: list[int]) -> list[int]:
        """Forced tokens up to the last that does not end inside a character."""
        pieces = self.compiled.vocabulary.token_bytes
        pending = self.text_bytes_tail()
        for num in range(len(forced), 0, -1):
            if _ends_whole(pending + b"".join(pieces[token] for token in forced[:num])):
                return forced[:num]
        return []

    def text_bytes_tail(self) -> bytes:
        """The last bytes of the text so far: enough to hold any unfinished character."""
        pieces = self.compiled.vocabulary.token_bytes
        return b"".join(pieces[token] for token in self.tokens[-4:])[-4:]

    def _checked(self, bits: np.ndarray) -> np.ndarray:
        """The engine's mask in the logits' width, after a check of its state."""
        if self._engine.is_error():
            raise self._dead_end()
        vocabulary = self.compiled.vocabulary
        row: np.ndarray = bits[: vocabulary.num_words] & (vocabulary.text_row | vocabulary.eos_row)
        if not row.any() and not self.is_complete:
            raise self._dead_end()
        return row

    def _dead_end(self) -> ConstraintError:
        text = self.text_bytes().decode("utf-8", "replace")
        if self._engine.is_error() and not self._engine.get_error().startswith("NoExtension"):
            _raise_on_error(self._engine, self.compiled.spec)
        if not self.tokens:
            return InvalidConstraintError(f"{_brief(self.compiled.spec)} can match no text at all")
        return ConstraintError(
            f"{_brief(self.compiled.spec)} has no way on after {text[-60:]!r}: "
            "what it asks for here contradicts itself"
        )

    def _refusal(self, token: int, index: int) -> str:
        piece = self.compiled.vocabulary.token_bytes[token : token + 1]
        shown = piece[0].decode("utf-8", "replace") if piece else ""
        before = self.text_bytes().decode("utf-8", "replace")[-60:]
        return (
            f"token {token} ({shown!r}), number {index} of those given, is not allowed after "
            f"{before!r}; expected {describe_next(self)}"
        )


class MaskWorker:
    """Computes masks of many matchers in parallel, while the model's step runs.

    Between `submit` and the future's result the matchers must not be used elsewhere.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._executor = llguidance.LLExecutor(num_threads)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="radixlang-masks")

    def submit(self, matchers: Sequence[Matcher]) -> Future[list[BaseException | None]]:
        """Start computing masks; the result has the error of each matcher, or None.

        Afterwards `fill_bitmask` and `is_finished` of a matcher only copy the result.
        """
        return self._thread.submit(self.compute, list(matchers))

    def compute(self, matchers: Sequence[Matcher]) -> list[BaseException | None]:
        """Compute masks now, without the interpreter's lock and on several threads."""
        waiting = [matcher for matcher in matchers if matcher._row is None]
        if waiting:
            width = -(-waiting[0].compiled.vocabulary.engine.vocab_size // 32)
            rows = np.zeros((len(waiting), width), dtype=np.int32)
            pairs = [(matcher._engine, index) for index, matcher in enumerate(waiting)]
            self._executor.unsafe_compute_mask_ptr(pairs, rows.ctypes.data, width * 4, len(rows))
        errors: dict[int, BaseException] = {}
        for index, matcher in enumerate(waiting):
            try:
                matcher.take_row(rows[index])
            except ConstraintError as error:
                errors[id(matcher)] = error
        return [errors.get(id(matcher)) for matcher in matchers]

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


class ConstraintCompiler:
    """Compiles constraints for one vocabulary and caches them by content. Thread-safe.

    A failure to compile is cached too, so that it takes its time only once.
    """

    def __init__(self, vocabulary: Vocabulary, max_cached: int = MAX_CACHED_CONSTRAINTS) -> None:
        self.vocabulary, self.max_cached = vocabulary, max_cached
        self._cache: OrderedDict[Constraint, CompiledConstraint | ConstraintError] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, spec: object) -> CompiledConstraint:
        """The compiled constraint of a specification.

        Raises:
            InvalidConstraintError: the specification is wrong, or no text can match it.
            UnsupportedConstraintError: it holds something that masks cannot enforce.
        """
        constraint = as_constraint(spec)
        with self._lock:
            found = self._cache.get(constraint)
            if found is not None:
                self._cache.move_to_end(constraint)
        found = found or self._compile(constraint)
        if isinstance(found, ConstraintError):
            raise found.with_traceback(None)
        return found

    def _compile(self, constraint: Constraint) -> CompiledConstraint | ConstraintError:
        found: CompiledConstraint | ConstraintError
        try:
            found = within(
                MAX_GRAMMAR_S if has_grammar(constraint) else MAX_COMPILE_S,
                lambda: CompiledConstraint(constraint, self.vocabulary),
            )
        except TimeoutError as error:
            found = UnsupportedConstraintError(
                f"{_brief(constraint)} is too complex: compiling {error}"
            )
        except ConstraintError as error:
            found = error
        with self._lock:
            self._cache[constraint] = found
            while len(self._cache) > self.max_cached:
                self._cache.popitem(last=False)
        return found


_compilers: WeakKeyDictionary[
    TokenSource, dict[tuple[int, tuple[int, ...]], ConstraintCompiler]
] = WeakKeyDictionary()
_compilers_lock = threading.Lock()


def compile_constraint(
    spec: object, tokenizer: TokenSource, vocab_size: int, eos_token_ids: Sequence[int]
) -> CompiledConstraint:
    """A constraint compiled for a model, cached by content as long as its tokenizer lives.

    Args:
        spec: a constraint; a string is a regex; a dict, bool or type is a JSON schema.
        tokenizer: the model's.
        vocab_size: width of the logits, padding included.
        eos_token_ids: every token that ends a text.

    Raises:
        InvalidConstraintError: the specification is wrong, or no text can match it.
        UnsupportedConstraintError: it holds something that masks cannot enforce.
    """
    key = (vocab_size, tuple(sorted(eos_token_ids)))
    with _compilers_lock:
        compilers = _compilers.setdefault(tokenizer, {})
        if key not in compilers:
            compilers[key] = ConstraintCompiler(Vocabulary.of(tokenizer, vocab_size, key[1]))
        compiler = compilers[key]
    return compiler.compile(spec)


@lru_cache(maxsize=1)
def _byte_compiler() -> ConstraintCompiler:
    return ConstraintCompiler(Vocabulary.of_bytes())


def byte_constraint(spec: object) -> CompiledConstraint:
    """A constraint compiled for single bytes, to match a text without a model."""
    return _byte_compiler().compile(spec)


def match_text(spec: Constraint, text: str) -> Match:
    """Whether a text is accepted, incomplete or rejected, and what was expected at which place."""
    return explain_text(byte_constraint(spec), text)


def _raise_on_error(engine: llguidance.LLMatcher, spec: Constraint) -> None:
    if not engine.is_error():
        return
    message = engine.get_error().strip()
    first = message.splitlines()[0][:300] if message else "unknown error"
    if _reached_a_bound(engine):
        raise UnsupportedConstraintError(
            f"{_brief(spec)} is too complex for the bounds on time and memory: {first}"
        )
    if first.startswith("NoExtension"):
        raise InvalidConstraintError(f"{_brief(spec)} can match no text at all")
    raise InvalidConstraintError(f"{_brief(spec)} cannot be used: {first}")


def _consume(engine: llguidance.LLMatcher, ids: list[int]) -> int:
    """The number of consumed tokens. A bound that was reached shows only when a mask is asked."""
    num_taken = int(engine.try_consume_tokens(ids))
    if num_taken < len(ids) and not engine.is_stopped():
        engine.compute_bitmask()
    return num_taken


def _validate(engine: llguidance.LLMatcher, ids: list[int]) -> int:
    return int(engine.validate_tokens(ids))


def _reached_a_bound(engine: llguidance.LLMatcher) -> bool:
    return engine.is_error() and any(sign in engine.get_error() for sign in _SIGNS_OF_BOUNDS)


def _brief(spec: Constraint) -> str:
    text = next(
        (str(v) for name in ("pattern", "schema", "text", "options", "tools", "parts")
         if (v := getattr(spec, name, None)) is not None), "",
    )  # fmt: skip
    return f"{type(spec).__name__}({text if len(text) <= 80 else text[:77] + '…'})"


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
