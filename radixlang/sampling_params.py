"""Sampling parameters: declared, defaulted and checked in this one place."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar

from radixlang.attention import Attention, as_attention
from radixlang.errors import ParameterError
from radixlang.spellings import hint_for

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_SEED = 2**64 - 1
# LogitsContext -> Tensor | None; the language names no type of torch
LogitsFunction: TypeAlias = Callable[[Any], Any]
# keys are token ids and texts; a Mapping is invariant in the type of its keys
LogitBias: TypeAlias = Mapping[Any, float] | tuple[tuple[str | int, float], ...]


class SamplingKeywords(TypedDict, total=False):
    """The fields of SamplingParams as keyword arguments; one string may stand for a tuple."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    stop: str | Iterable[str] | None
    stop_regex: str | Iterable[str] | None
    stop_token_ids: int | Iterable[int] | None
    ignore_eos: bool
    seed: int | None
    logprobs: bool
    top_logprobs: int
    heal: bool
    logit_bias: LogitBias | None
    logits: LogitsFunction | None
    attention: Attention | None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one generation samples and when it ends.

    Args:
        max_tokens: most tokens to generate.
        min_tokens: no end token is sampled, and stops are ignored, before this many tokens.
        temperature: 0 is greedy.
        top_k: keep the k most likely tokens; None keeps all.
        top_p: keep the smallest set of tokens with this much probability.
        min_p: drop tokens less likely than this fraction of the most likely one.
        frequency_penalty: subtracted from a logit once for each earlier generated occurrence.
        presence_penalty: subtracted once if the token was generated at all.
        repetition_penalty: divides positive and multiplies negative logits of seen tokens
            (prompt included), as in CTRL (Keskar et al. 2019, section 4.1).
        stop: strings that end the generation; the text ends before the match.
        stop_regex: Python patterns that end the generation as soon as one matches; the text ends
            before the first match. Streams hold back text in which a match may still begin.
        stop_token_ids: token ids that end it, in addition to the model's own end tokens.
        ignore_eos: go on past the model's end tokens.
        seed: 64-bit key of this generation's random numbers; None draws one.
        logprobs: record the log-probability of each generated token.
        top_logprobs: also record this many most likely alternatives.
        heal: token healing: drop the last token of the prompt's text if it is unstable, and
            generate one that begins with its text, as if text and generation were one.
        logit_bias: numbers added to the logits of tokens; -inf bans one. A token is its id, or a
            text that is one token of the model, as in {" yes": 2.0, 151643: -math.inf}.
        logits: a function of a LogitsContext that changes the logits of each token to be sampled,
            or returns others; see there. It takes part in no token that a constraint forces, and
            the prompt's last token is not healed.
        attention: how much of its path each generated token reads: `Exact()`, `TopPages(k)` or
            `TopMass(epsilon)`; None is the runtime's own.

    Raises:
        ParameterError: a value is out of range.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    heal: bool = True
    logit_bias: tuple[tuple[str | int, float], ...] = ()
    logits: LogitsFunction | None = None
    attention: Attention | None = None

    if TYPE_CHECKING:  # the constructor takes more than the fields hold: stop="." is (".",)

        def __init__(self, **options: Unpack[SamplingKeywords]) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _as_tuple(self.stop, str, "stop"))
        object.__setattr__(self, "stop_regex", _as_tuple(self.stop_regex, str, "stop_regex"))
        object.__setattr__(
            self, "stop_token_ids", _as_tuple(self.stop_token_ids, int, "stop_token_ids")
        )
        _require(_is_int(self.max_tokens) and self.max_tokens >= 1, "max_tokens", self.max_tokens,
                 "an integer of at least 1")  # fmt: skip
        _require(_is_int(self.min_tokens) and 0 <= self.min_tokens <= self.max_tokens,
                 "min_tokens", self.min_tokens,
                 f"between 0 and max_tokens={self.max_tokens}")  # fmt: skip
        _require(_is_number(self.temperature) and 0 <= self.temperature < float("inf"),
                 "temperature", self.temperature, "a finite number of at least 0")  # fmt: skip
        _require(self.top_k is None or (_is_int(self.top_k) and self.top_k >= 1),
                 "top_k", self.top_k,
                 "an integer of at least 1, or None for all tokens")  # fmt: skip
        _require(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p,
                 "above 0 and at most 1")  # fmt: skip
        _require(_is_number(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p,
                 "between 0 and 1")  # fmt: skip
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            _require(_is_number(value) and -2 <= value <= 2, name, value, "between -2 and 2")
        _require(_is_number(self.repetition_penalty) and self.repetition_penalty > 0,
                 "repetition_penalty", self.repetition_penalty, "above 0 (1 is off)")  # fmt: skip
        _require("" not in self.stop, "stop", self.stop, "strings that are not empty")
        for pattern in self.stop_regex:
            _check_pattern(pattern)
        _require(self.seed is None or (_is_int(self.seed) and 0 <= self.seed <= MAX_SEED),
                 "seed", self.seed, "an integer from 0 to 2**64 - 1, or None")  # fmt: skip
        _require(_is_int(self.top_logprobs) and 0 <= self.top_logprobs <= 100,
                 "top_logprobs", self.top_logprobs, "between 0 and 100")  # fmt: skip
        object.__setattr__(self, "logit_bias", bias_pairs(self.logit_bias))
        _require(self.logits is None or callable(self.logits), "logits", self.logits,
                 "a function of a LogitsContext, or None")  # fmt: skip
        object.__setattr__(self, "attention", as_attention(self.attention))
        for name in ("ignore_eos", "logprobs", "heal"):
            _require(isinstance(getattr(self, name), bool), name, getattr(self, name),
                     "True or False")  # fmt: skip

    @classmethod
    def checked(cls, **kwargs: Unpack[SamplingKeywords]) -> SamplingKeywords:
        """Check names and values of the keyword arguments, and return them, `logit_bias` as
        pairs."""
        params = cls.from_kwargs(**kwargs)
        return {**kwargs, "logit_bias": params.logit_bias} if "logit_bias" in kwargs else kwargs

    @classmethod
    def from_kwargs(cls, **kwargs: Unpack[SamplingKeywords]) -> SamplingParams:
        """Build from keyword arguments; an unknown one is refused with the nearest known name."""
        return cls(**check_names(dict(kwargs)))

    def override(self, **kwargs: Unpack[SamplingKeywords]) -> SamplingParams:
        """A copy with the given fields changed; unknown names are refused."""
        return replace(self, **check_names(dict(kwargs))) if kwargs else self

    def with_seed(self, seed: int) -> SamplingParams:
        """A copy with another seed. It skips the checks, which this object has passed."""
        copy = object.__new__(SamplingParams)
        for name in PARAM_NAMES:
            object.__setattr__(copy, name, getattr(self, name))
        object.__setattr__(copy, "seed", seed)
        return copy


T = TypeVar("T")
PARAM_NAMES = tuple(field.name for field in fields(SamplingParams))


def check_names(kwargs: dict[str, Any]) -> Any:  # a SamplingKeywords, if names are right
    """Return kwargs, or raise a ParameterError that names the nearest known parameter."""
    for name in kwargs:
        if name not in PARAM_NAMES:
            hint = hint_for(name, PARAM_NAMES, "gen")
            raise ParameterError(f"unknown sampling parameter {name!r}; {hint}")
    return kwargs


def bias_pairs(given: Any) -> tuple[tuple[str | int, float], ...]:
    """The argument `logit_bias` as pairs, which can be hashed and written to a file."""
    if not given:
        return ()
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        found: dict[Any, Any] = dict(pairs)
    except (TypeError, ValueError):
        raise ParameterError(
            f"logit_bias must be a dict from tokens to numbers, got {given!r}"
        ) from None
    for token, value in found.items():
        _require(isinstance(token, str) or (_is_int(token) and token >= 0), "logit_bias", token,
                 "of token ids, or of texts that are one token")  # fmt: skip
        _require(_is_number(value) and value < math.inf, "logit_bias", value,
                 "of finite numbers, or -inf to ban a token")  # fmt: skip
    return tuple((token, float(value)) for token, value in found.items())


def _as_tuple(value: object, kind: type[T], name: str) -> tuple[T, ...]:
    if value is None:
        return ()
    if isinstance(value, kind):
        return (value,)
    one, many = _WORDS_OF[kind]
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ParameterError(f"{name} must be {one} or a list of {many}, got {value!r}")
    items = tuple(value)
    for item in items:
        if not isinstance(item, kind) or isinstance(item, bool):
            raise ParameterError(f"{name} must hold {many} alone, got {item!r}")
    return items


_WORDS_OF = {str: ("a string", "strings"), int: ("an integer", "integers")}


def _check_pattern(pattern: str) -> None:
    try:
        matches_nothing = re.compile(pattern).search("") is not None
    except re.error as error:
        raise ParameterError(
            f"stop_regex {pattern!r} is no pattern: {error}; a character of the text that has a "
            r"meaning in patterns is written with a backslash, as in \("
        ) from None
    if matches_nothing:
        raise ParameterError(
            f"stop_regex {pattern!r} matches an empty text, so it would end every generation at "
            "once; let it need a character"
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _require(ok: bool, name: str, value: object, expected: str) -> None:
    if not ok:
        raise ParameterError(f"{name} must be {expected}, got {value!r}")
