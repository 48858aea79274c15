"""Constraints compiled for a vocabulary, once for each content.

A compiled constraint makes the matchers of branches. It closes, checks and matches finished texts,
for which it is compiled once more, for single bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias
from weakref import WeakKeyDictionary

from radixlang.constraints.specs import Constraint, Finish, Match, as_constraint
from radixlang.errors import ConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints.completion import close_text
from radixlang.runtime.constraints.engine_errors import brief, raise_on_error
from radixlang.runtime.constraints.explain import capture_parts, explain_text
from radixlang.runtime.constraints.grammar.finished_text import ParseTree
from radixlang.runtime.constraints.lowering import Grammars, Lowered, has_grammar, lower
from radixlang.runtime.constraints.matcher import EngineStart, Matcher
from radixlang.runtime.constraints.time_limit import within
from radixlang.runtime.constraints.vocabulary import TokenSource, Vocabulary

MAX_CACHED_CONSTRAINTS = 256
MAX_COMPILE_S = 3.0  # of the MaskBench sample one takes 0.35 s; 2,000 keys took 1 in a busy hour
MAX_GRAMMAR_S = 5.0  # lark takes most of a second for a grammar as large as Python's


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
        engine = grammars.matcher(self.grammar)
        raise_on_error(engine, spec)
        self._start = EngineStart(spec, vocabulary, self.grammar, self.forces, engine)
        self.matcher().allowed_row()  # a dead end at the beginning is an error now

    def matcher(self) -> Matcher:
        """A matcher at the beginning of a text."""
        return self._start.matcher()

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
                f"{brief(constraint)} is too complex: compiling {error}"
            )
        except ConstraintError as error:
            found = error
        with self._lock:
            self._cache[constraint] = found
            while len(self._cache) > self.max_cached:
                self._cache.popitem(last=False)
        return found


_Model: TypeAlias = tuple[int, tuple[int, ...]]  # width of the logits, tokens that end a text
_compilers: WeakKeyDictionary[TokenSource, dict[_Model, ConstraintCompiler]] = WeakKeyDictionary()
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
